"""What is asked of a reference when it first runs: does it return its input, write to it, draw random numbers?

Each of these would be harmless in a plain function and wrong in an operator: autograd, functionalization and
every kernel that replaces the reference rely on the schema's word. Calls through the dispatcher are asked each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.spec import draws
from opwright.kit.spec.schema import Signature
from opwright.kit.spec.values import tensors


class BadReference(TypeError):
    """The reference breaks a rule that every operator keeps; the message says how to fix it."""


class State:
    """Runs a reference with the questions asked, until it has once answered them all well."""

    def __init__(
        self, name: str, signature: Signature, reference: Callable[..., Any], random: bool, gradient: bool
    ) -> None:
        self.name, self.signature, self.reference, self.random = name, signature, reference, random
        self.gradient = gradient
        self.fresh = True
        self._generators: list[Any] | None = None
        self._patience = 3
        """Calls that may answer too little before it is asked no more: asking costs, and on a GPU it waits."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        # No mode stands around the reference: below one PyTorch leaves out what it does above it (lazy conjugation,
        # autocast, the counting of views), and the first call would compute something else than the second.
        values = self.signature.bind(args, kwargs)
        given = [(name, t) for name, value in values.items() for t in tensors(value)]
        batched = private.is_legacy_batched
        if wrapped() or any(batched(t) for _, t in given):
            return self.reference(*args, **kwargs)
        versions, contents = read_versions(given), _copies(given, self.signature)
        if self._generators is None:
            self._generators = draws.generators_of(self.reference)
        generators = None if self.random else draws.states(None, self._generators)
        out = self.reference(*args, **kwargs)
        self.refuse_writes(given, versions, values, contents)
        if generators is not None and not draws.same(generators, draws.states(None, self._generators)):
            self._refuse_draws(values)
        results = tensors(out)
        if self.signature.returns_input is None and not self.gradient:
            refuse_alias(self.name, given, out)
        # An empty tensor shares no memory, an inference tensor counts no writes: alone, they answer too little.
        told = all(was is not None or not t.is_inference() for (_, t), was in zip(given, contents, strict=True))
        self._patience -= 1
        self.fresh = self._patience > 0 and not (told and all(t.numel() for t in results))
        return out

    def _refuse_draws(self, values: dict[str, Any]) -> None:
        drew = draws.culprit(
            lambda: self._again({name: _private(value) for name, value in values.items()}),
            lambda: draws.states(None, self._generators or ()),
            self._generators or (),
        )
        if not drew:
            return  # another thread did
        if self.gradient:
            raise BadReference(
                f"{self.name}: the reference that it is derived from draws random numbers ({drew}), and a "
                f"gradient would draw others; declare the operator with @ow.op(random=True)"
            )
        raise BadReference(
            f"{self.name}: the reference draws random numbers ({drew}); declare it with "
            f"@ow.op(random=True), so that its derivatives are never computed by drawing again"
        )

    def _again(self, values: dict[str, Any]) -> None:
        """Run the reference once more, for what it does to its arguments and not for its result."""
        positional = [values[p.name] for p in self.signature.parameters if not p.keyword_only]
        with torch.no_grad():
            self.reference(*positional, **{p.name: values[p.name] for p in self.signature.parameters if p.keyword_only})

    def refuse_alias(self, out: Tensor, given: dict[str, Any]) -> None:
        """Raise when a result that looks suspicious does share memory with an argument."""
        refuse_alias(self.name, [(name, t) for name, value in given.items() for t in tensors(value)], out)

    def refuse_writes(
        self,
        given: list[tuple[str, Tensor]],
        before: list[int],
        values: dict[str, Any],
        contents: Sequence[Tensor | None] = (),
    ) -> None:
        """Raise when an argument was written to that should not be, or one was not that should."""
        written = [t for parameter, t in given if self.signature.names[parameter].mutated]
        for i, ((parameter, t), version) in enumerate(zip(given, before, strict=True)):
            # Views of one tensor count writes together.
            declared = self.signature.names[parameter].mutated or any(_share_storage(t, w) for w in written)
            moved = _version(t) != version or (bool(contents) and not _equal(t, contents[i]))
            if moved and not declared and self._writes(parameter, values):
                raise BadReference(
                    f"{self.name}: the reference writes to its argument {parameter!r}; declare it with "
                    f"@ow.op(mutates=({parameter!r},)), or work on {parameter}.clone()"
                )
            if _version(t) == version != -1 and parameter == self.signature.returns_input and t.numel():
                raise BadReference(
                    f"{self.name}: its name ends in _, which promises to write to {parameter!r}, and the reference "
                    f"did not; let it use in-place operations, or choose another name"
                )

    def _writes(self, parameter: str, values: dict[str, Any]) -> bool:
        """Whether it is the reference that writes to an argument, and not another thread that holds a view of the same
        memory. Asked only of what looks written to."""
        private = {name: _private(value) for name, value in values.items()}
        asked = tensors(private[parameter])
        before = [(_version(t), _bits(t).clone()) for t in asked]
        self._again(private)
        after = zip(asked, before, strict=True)
        return any(_version(t) != version or not _equal(t, was) for t, (version, was) in after)

    def refuse_result(self, out: Any) -> None:
        """Raise for an in-place operator's reference that returned something of its own."""
        raise BadReference(
            f"{self.name}: its name ends in _, which promises to write to {self.signature.returns_input!r} and to "
            f"return it, and the reference returned another {type(out).__name__}"
        )


def refuse_alias(name: str, given: list[tuple[str, Tensor]], out: Any) -> None:
    """Raise when an output shares memory with an input or with another output."""
    seen: list[Tensor] = []
    for result in tensors(out):
        for parameter, t in given:
            if aliases(result, t):
                what = parameter if result is t else f"a view of {parameter}"
                raise BadReference(
                    f"{name}: the reference returns {what}, and an operator's result is memory of its own; "
                    f"return a copy (for example `.clone()`) on this path"
                )
        if any(aliases(result, t) for t in seen):
            raise BadReference(f"{name}: two results of the reference share memory; return `.clone()` of one of them")
        seen.append(result)


def unalias(given: list[Tensor], out: Any) -> Any:
    """The same results, each dense in a storage of its own, as a kernel would return them.

    A gradient may well be the gradient that came in, a slice of another one, or one number expanded.
    """
    taken = list(given)
    # Dynamo can be asked nothing about memory. Inductor drops a copy of what is fresh.
    traced = torch.compiler.is_dynamo_compiling()

    def own(value: Any) -> Any:
        if isinstance(value, Tensor):
            if traced or not _is_dense(value) or any(_share_storage(value, t) for t in taken):
                value = value.clone()
            taken.append(value)
            return value
        return [own(v) for v in value] if isinstance(value, (list, tuple)) else value

    return tuple(own(v) for v in out)


def wrapped() -> bool:
    """Whether a transform or a mode stands between the caller and real memory, so that nothing can be asked."""
    return private.innermost_transform() is not None or private.modes() > 0


def aliases(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share memory, as far as they can be asked: a transform's wrapper cannot."""
    size = a.numel()
    if isinstance(size, int) and size == 0 and a is not b:  # a size known only at run time must not be guarded on
        return False
    return _share_storage(a, b)


def _share_storage(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have one storage, as empty ones may, which share no memory."""
    if a is b:
        return True
    if a.layout != torch.strided or b.layout != torch.strided:
        return False
    return bool(private.is_alias(a, b))


def _is_dense(t: Tensor) -> bool:
    """Whether it is memory without gaps, in whatever order, and without an element in two places."""
    if t.layout != torch.strided:
        return True
    try:
        return t.is_contiguous() or bool(torch.ops.aten.is_non_overlapping_and_dense(t))
    except RuntimeError:  # it depends on a size known only at run time
        return False


def read_versions(given: list[tuple[str, Tensor]]) -> list[int]:
    """How often each tensor was written to so far."""
    return [_version(t) for _, t in given]


def _version(t: Tensor) -> int:
    """How often it was written to; -1 where nobody counts: inference tensors, a tracer's stand-ins."""
    if private.is_wrapped(t):
        return -1  # what a transform writes to is its own
    if t.is_inference() or type(t) not in (Tensor, torch.nn.Parameter) or private.is_functional(t):
        return -1
    return -1 if _uncounted() else t._version


def _uncounted() -> bool:
    """Whether writes to plain tensors go uncounted here, as they do in inference mode and below autograd."""
    if torch.compiler.is_dynamo_compiling():  # before torch 2.13 it cannot trace the question below
        return torch.is_inference_mode_enabled()
    return bool(private.key_is_excluded(private.DispatchKey.ADInplaceOrView))


SMALL = 2**16
"""Elements of an argument that the first call may copy, to see writes that nobody counts."""


def _copies(given: list[tuple[str, Tensor]], signature: Signature) -> list[Tensor | None]:
    """What small arguments hold that must not be written to: batch norm on the CPU, for one, writes its running
    statistics without counting."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return [None] * len(given)
    return [
        _bits(t).clone() if _comparable(t) and not signature.names[parameter].mutated else None
        for parameter, t in given
    ]


def _comparable(t: Tensor) -> bool:
    return (
        type(t) in (Tensor, torch.nn.Parameter)
        and t.layout == torch.strided
        and not t.is_nested
        and t.numel() <= SMALL
        and not (t.is_meta or t.is_quantized)
    )


def _equal(t: Tensor, was: Tensor | None) -> bool:
    if was is None or t.shape != was.shape:
        return True
    now = _bits(t)
    return bool(((now == was) | ((now != now) & (was != was))).all())


_WIDTHS = {1: torch.uint8, 2: torch.int16}


def _bits(t: Tensor) -> Tensor:
    """What a tensor holds, to be copied and compared: the narrow integers of a dtype that has no arithmetic as ones of
    a dtype that does."""
    narrow = not (t.is_floating_point() or t.is_complex() or t.is_quantized) and t.itemsize in _WIDTHS
    return t.detach().view(_WIDTHS[t.itemsize]) if narrow and t.layout == torch.strided else t.detach()


def _private(value: Any) -> Any:
    """A copy of an argument that nobody else holds."""
    if isinstance(value, Tensor):
        copy = _bits(value).clone()
        return copy if copy.dtype == value.dtype else copy.view(value.dtype)
    return [_private(v) for v in value] if isinstance(value, (list, tuple)) else value
