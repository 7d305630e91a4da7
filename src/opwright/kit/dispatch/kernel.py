"""A kernel: a faster way to compute an operator on one kind of device, inside a domain."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opwright.kit import locks, private
from opwright.kit.build import bound
from opwright.kit.build.foreign import is_loaded
from opwright.kit.build.library import Library, forbidden, library_of
from opwright.kit.build.strings import is_kept
from opwright.kit.build.trouble import BuildError, WrongKernel
from opwright.kit.dispatch import native, registry
from opwright.kit.spec import words
from opwright.kit.spec.operator import KernelSpec, Spec
from opwright.kit.spec.schema import Signature
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op

_binding = locks.renewed()
"""Held while kernels are bound and routed: two threads may make the first call."""

DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "xla", "privateuseone")

EXACT = 2**sys.float_info.mant_dig
"""The largest whole number up to which a double holds every one."""


class Kernel:
    """A kernel written in Python, or bound in a source file that is built when first needed."""

    def __init__(self, spec: KernelSpec, owner: Spec) -> None:
        self.spec, self.device, self.domain, self.name = spec, spec.device, spec.domain, spec.name
        self.library: Library | None = None
        if spec.file is not None:
            self.library = library_of(spec.file, owner.namespace, spec.options, spec.device)
            self.library.look_again()
            self.library.guarded = self.library.guarded or is_loaded(owner.origin) or is_kept(spec.file)
        self._function = spec.function
        self._ready: Callable[..., Any] | None = None
        self._key: str | None = None
        self.overload: Any = None
        """The overload that a built kernel answers to, once it is loaded."""
        self.routed = False
        """Whether C++ chooses it, so that Python need not be asked."""

    def unrouted(self) -> None:
        """C++ has forgotten it: whoever needs it next tells C++ again."""
        self._key, self.routed = None, False

    def refuses(self, op: Op[..., Any], values: dict[str, Any]) -> str | None:
        """Why it does not take a call; None when it does."""
        found = [t for value in values.values() for t in tensors(value)]
        if device_of(values) != self.device:
            renamed = self.device == "privateuseone" and device_of(values) == private.privateuse1_name()
            return f"it is for {self.device}{', which has another name here' if renamed else ''}"
        if any(t.is_nested for t in found):
            return "a tensor is nested"
        if self.library is not None:
            if any(t.dim() > native.MOST_DIMENSIONS for t in found):
                return f"a tensor has more than {native.MOST_DIMENSIONS} dimensions"
            first = self.domain.first_plain(values)
            whole = first is not None and not (first[1].is_floating_point() or first[1].is_complex())
            for p in op.signature.parameters:
                # A built kernel takes a number as a double.
                value = values.get(p.name)
                if p.kind.schema == "Tensor" and value is None:
                    return f"{p.name} is absent"
                if p.kind.words and isinstance(value, str) and value not in p.kind.words:
                    return f"{p.name} is {value!r}, and must be {p.kind.says}"
                for number in _numbers(value) if p.kind.is_number else ():
                    if isinstance(number, complex) or (whole and isinstance(number, float)):
                        return f"{p.name} is {type(number).__name__} {number}, which would change the result's type"
                    if isinstance(number, int) and abs(number) > EXACT:
                        return f"{p.name} is {number}, which a double cannot hold exactly"
        return self.domain.refuses(values)

    @property
    def usable(self) -> bool:
        """Whether it runs, or can be built to."""
        if self.library is None or self.library.key is not None:
            return True
        return self.library.trouble is None and not (forbidden() and not self.library.cached())

    @property
    def state(self) -> str:
        """Whether it can run now, for `explain`."""
        if self.library is None:
            return "in Python"
        if self.library.trouble:
            return self.library.trouble
        if self.library.key:
            return "built"
        if self.library.cached():
            return "built, and loaded on first use"
        return "not built, and OPWRIGHT_BUILD=0 forbids it" if forbidden() else "built on first use"

    def failure(self, op: Op[..., Any]) -> str | None:
        """What a call that chooses it will raise, as far as that can be known without building it; None: nothing."""
        if self.library is None:
            return None
        said = self.library.failed()
        if said is not None:
            return f"BuildError: {said}"
        fresh = self.library.key is not None and not self.library.edited
        try:
            if fresh:
                self.ready(op)
            elif self.library.cached():
                self.refuse_other_types(op)
        except BuildError as e:
            return f"{type(e).__name__}: {e}"
        return None

    def says(self, op: Op[..., Any], values: dict[str, Any]) -> str | None:
        """Which way of its own it would take a call, where its source says so (OPWRIGHT_EXPLAINS) and is built."""
        if self.library is None or not (self.library.key or self.library.cached()) or self.ready(op) is None:
            return None
        overload = f"{self.device}_{self._key}_explains"
        if not private.has_any_kernel(f"{op.qualname}.{overload}"):
            return None
        with torch.no_grad():
            said: str = registry.define_words(op, overload)(*self._passed(op, values))
        return said

    def ready(self, op: Op[..., Any]) -> Callable[..., Any] | None:
        """The function to call, built and loaded if need be; None when this machine cannot have it."""
        if self.library is None:
            if self._ready is None:
                self._ready = self._decoded(op)
            return self._ready
        key = self.library.load()
        if key is None:
            return None
        if key != self._key:
            with _binding:
                self._take(op, key)
                _route(op, self.device)
        return self._function

    def _take(self, op: Op[..., Any], key: str) -> None:
        if key != self._key:
            self._function = self._bind(op, key)
            self._key = key

    def _decoded(self, op: Op[..., Any]) -> Callable[..., Any]:
        """The Python kernel, given what the reference is given: members of enums, not their names, and every default,
        which the dispatcher leaves out."""
        function = self._function
        assert function is not None
        coded = [p for p in op.signature.parameters if p.kind.encode]

        def call(*args: Any, **kwargs: Any) -> Any:
            values = op.signature.bind(args, kwargs)
            values |= {p.name: p.kind.convert(values[p.name]) for p in coded if values[p.name] is not None}
            positional, named = _arranged(op.signature, values)
            return function(*positional, **named)

        return call

    def refuse_other_types(self, op: Op[..., Any]) -> None:
        """Raise when its library, as it was found, binds a function of other types than the operator's schema has."""
        assert self.library is not None
        for each in self.library.bound:
            if (each.op, each.device) == (op.name, self.device):
                wrong = bound.mismatch(op, each, self.library.file.parent)
                if wrong is not None:
                    raise WrongKernel(wrong)

    def _bind(self, op: Op[..., Any], key: str) -> Callable[..., Any]:
        assert self.library is not None
        self.refuse_other_types(op)
        try:
            overload = registry.define_hidden(op, f"{self.device}_{key}")
        except RuntimeError as e:
            if "schema" not in str(e):
                raise
            # PyTorch compares by itself what TORCH_LIBRARY_IMPL binds.
            raise WrongKernel(f"{op.name}: {self.library.file} binds a function that does not fit it\n{e}") from None
        if not private.has_kernel(overload.name(), self.device.upper()):
            raise WrongKernel(bound.unbound(op, self.device, self.library.file, self.library.bound))
        self.overload = overload
        hidden = overload._op

        def call(*args: Any, **kwargs: Any) -> Any:
            return hidden(*self._passed(op, op.signature.bind(args, kwargs)))

        return call

    @staticmethod
    def _passed(op: Op[..., Any], values: dict[str, Any]) -> list[Any]:
        """The arguments as a built kernel takes them: in their order, numbers as doubles."""
        for p in op.signature.parameters:
            value = values[p.name]
            if p.kind.is_number and value is not None:
                whole = isinstance(value, (list, tuple))
                values = {**values, p.name: [float(v) for v in value] if whole else float(value)}
        positional, named = op.signature.encode(values)
        return [*positional, *named.values()]


def _arranged(signature: Signature, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    positional = [values[p.name] for p in signature.parameters if not p.keyword_only]
    return positional, {p.name: values[p.name] for p in signature.parameters if p.keyword_only}


def refuse_device(name: str, device: str) -> None:
    """Raise unless there is such a kind of device."""
    if device == private.privateuse1_name() != "privateuseone":
        raise ValueError(
            f"{name}: no kernel can be for {device!r}, a renamed PrivateUse1, since the router knows the devices that "
            f"PyTorch brings; operators run their references there"
        )
    if not isinstance(device, str) or device not in DEVICES:
        hint = words.near(device, DEVICES)
        raise ValueError(f"{name}: a kernel is for a kind of device such as 'cpu' or 'cuda', got {device!r}{hint}")


def refuse_parameters(name: str, signature: Signature, function: Callable[..., Any]) -> None:
    """Raise unless a kernel in Python can be called as its operator is."""
    positional, named = _arranged(signature, dict.fromkeys(signature.names))
    try:
        inspect.signature(function).bind(*positional, **named)
    except TypeError as e:
        raise TypeError(
            f"{name}: its kernel must take what it takes, ({', '.join(signature.names)}), "
            f"got {inspect.signature(function)}: {e}"
        ) from None
    except ValueError:
        return  # a builtin, of which Python does not know


def device_of(values: dict[str, Any]) -> str:
    """The kind of device that a call runs on: its first tensor's; without one, what it says itself, or PyTorch's
    default."""
    for value in values.values():
        for t in tensors(value):
            return t.device.type
    asked = next((v for v in values.values() if isinstance(v, torch.device)), None)
    return (torch.get_default_device() if asked is None else asked).type


def _numbers(value: Any) -> Sequence[Any]:
    """The numbers in a value: itself, those of a list, or none."""
    return value if isinstance(value, (list, tuple)) else [] if value is None else [value]


def _route(op: Op[..., Any], device: str) -> None:
    """Let C++ choose between the kernels of a device, as far as they are built: the first that is not, one in Python
    or one that does not compile, and all behind it are left to Python."""
    routes = []
    kernels = [k for k in op.kernels if k.device == device]
    for kernel in kernels:
        kernel.routed = False
    for kernel in kernels:
        if kernel.library is None:
            break
        try:
            key = kernel.library.load()
            if key is not None:
                kernel._take(op, key)
        except BuildError:
            break  # told to whoever calls it
        kernel.routed = True
        if key is not None:
            routes.append(kernel)
    native.route(op, device, routes)
