"""What a module's own forward does, where a trace tells all of it; and when that is no longer so.

A trace shows what a forward does with tensors, once. What else it does (counts, looks at its settings, draws numbers,
works under another mode) is done once too, and then never again. Such forwards are refused, or the trace is guarded.
"""

from __future__ import annotations

import copy
import gc
import inspect
import operator
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from opwright.kit.private import TorchDispatchMode

PLAIN = (type(None), bool, int, float, str)
"""Arguments that a trace takes for constants."""
_CONTAINERS = (list, tuple, dict, set)
_INTERNAL = frozenset(nn.Module().__dict__)
_MISSING = object()
_DEVICES = ("cpu", "cuda")
_ALONE = threading.RLock()
"""torch.fx patches torch.nn.Module for the process while it traces: two at once would leave it patched. It also lets no
thread call what torch.compile made meanwhile, which is not in our hands."""


class Refused(Exception):
    """Why a forward is not what its trace says."""


class Drawn(Refused):
    """Numbers were drawn meanwhile."""


@dataclass(frozen=True)
class Traced:
    """The graph of a forward, and the plain attributes of the module and of its class that it has read, as they were.

    The forward is one of its class's."""

    graph: Any
    reads: Mapping[str, Any]
    of_class: Mapping[str, Any]

    def holds(self, module: nn.Module) -> bool:
        """Whether the module would still give that trace, by what it has read."""
        own, kind = module.__dict__, type(module)
        for name, then in self.of_class.items():
            now = getattr(kind, name, _MISSING)
            if (now is not then and not _same(now, then)) or (name in own and name != "forward"):
                return False
        for name, then in self.reads.items():
            now = own.get(name, _MISSING)
            if now is not then and not _same(now, then):
                return False
        return True


def kinds(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a trace depends on of a call: which of its arguments are tensors, and all others."""
    return tuple([_kind(a) for a in args]), tuple([(name, _kind(a)) for name, a in kwargs.items()])


def _kind(value: Any) -> Any:
    if isinstance(value, Tensor):
        return Tensor
    return (type(value), value) if type(value) in PLAIN else type(value)


def trace(module: nn.Module, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any]) -> Traced:
    """Trace a module's own forward, its children as they are, for such a call; None: one with tensors for whatever has
    no default. Raises Refused where the forward does what a trace does not tell."""
    given = _given(type(module).forward, module, args, kwargs)
    # Twice, in surroundings that differ: a forward that sets them itself has one of both wrong.
    with _ALONE:
        (graph, *seen), (again, *_) = (_traced(module, given, on) for on in (True, False))
    if graph.python_code("self").src != again.python_code("self").src:
        raise Refused("it does something else each time, or under autocast or no_grad")
    traced = Traced(graph, *seen)
    for function in traced.of_class.values():
        code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
        if code is not None and "training" in code.co_names:  # its own is refused where it is read
            raise Refused("it depends on whether another module is training")
    return traced


def _given(forward: Callable[..., Any], module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that are constants of a call, by name."""
    signature = inspect.signature(forward)
    _, *parameters = signature.parameters.values()
    if args is None:
        found = {p.name: p.default for p in parameters if p.default is not p.empty}
        found |= {p.name: () for p in parameters if p.kind is p.VAR_POSITIONAL}
        found |= {p.name: {} for p in parameters if p.kind is p.VAR_KEYWORD}
    else:
        try:
            bound = signature.bind(module, *args, **kwargs)
        except TypeError as e:
            raise Refused(f"it does not take these arguments: {e}") from None
        bound.apply_defaults()
        found = {p.name: bound.arguments[p.name] for p in parameters}
    for name, value in found.items():
        if not (isinstance(value, Tensor) or type(value) in PLAIN or value == () or value == {}):
            raise Refused(f"{name} is a {type(value).__name__}")
    return {name: value for name, value in found.items() if not isinstance(value, Tensor)}


def _traced(module: nn.Module, given: dict[str, Any], on: bool) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Once more where numbers were drawn meanwhile: that may have been another thread."""
    try:
        return _trace_once(module, given, on)
    except Drawn:
        return _trace_once(module, given, on)


def _trace_once(module: nn.Module, given: dict[str, Any], on: bool) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    made: list[weakref.ref[Any]] = []
    with _observed(module) as (reads, of_class), _surroundings(on), _NothingComputed():  # type: ignore[no-untyped-call]
        tracer = _tracer(made, given)
        drawn = random.getstate()
        graph = tracer.trace(module)
    if random.getstate() != drawn:
        raise Drawn("it draws random numbers outside of PyTorch")
    del tracer
    for name, then in reads.items():
        if not _same(module.__dict__.get(name, _MISSING), then):
            _restore(module.__dict__.get(name), then)
            raise Refused(f"it changes self.{name}")
    if not _gone(made):
        raise Refused("it keeps a tensor beyond the call")
    return graph, reads, of_class


def _gone(made: list[weakref.ref[Any]]) -> bool:
    """Whether none of these is left but in cycles, as a function that calls itself makes one. Those are young: to look
    through all objects of a process takes half a second, and is done where something seems to be kept."""
    for generation in range(3):
        if all(ref() is None for ref in made):
            return True
        gc.collect(generation)
    return all(ref() is None for ref in made)


def _restore(now: Any, then: Any) -> None:
    """Take back what a trace has put into a container."""
    if type(now) is type(then) and isinstance(now, (list, dict, set)):
        now.clear()
        now.extend(then) if isinstance(now, list) else now.update(then)


def _same(now: Any, then: Any) -> bool:
    if now is then and not isinstance(now, _CONTAINERS):
        return True
    if type(now) is not type(then) or not isinstance(now, (*PLAIN, *_CONTAINERS, MethodType)):
        return False
    try:
        return bool(now == then)
    except Exception:  # tensors inside
        return False


@contextmanager
def _observed(module: nn.Module) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Note the plain attributes that are read, of the module and of its class, and refuse that one is set. Other
    threads that call the module meanwhile may do both, though what they change makes the trace be refused."""
    kind: type[Any] = type(module)
    here = threading.get_ident()
    reads: dict[str, Any] = {}
    of_class: dict[str, Any] = {"forward": kind.forward}

    class Observed(kind):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            if threading.get_ident() != here:
                return super().__getattribute__(name)
            if name == "training":
                raise Refused("it depends on self.training")
            value = super().__getattribute__(name)
            own = object.__getattribute__(self, "__dict__")
            if name not in own and not name.startswith("__"):
                then = getattr(kind, name, _MISSING)
                if name not in of_class and then is not getattr(nn.Module, name, _MISSING):
                    of_class[name] = copy.copy(then) if isinstance(then, _CONTAINERS) else then
            elif name in own and name not in _INTERNAL and name not in reads and not isinstance(value, Tensor):
                reads[name] = copy.copy(value) if isinstance(value, _CONTAINERS) else value
            return value

        def __setattr__(self, name: str, value: Any) -> None:
            if threading.get_ident() == here:
                raise Refused(f"it sets self.{name}")
            super().__setattr__(name, value)

        def __delattr__(self, name: str) -> None:
            if threading.get_ident() == here:
                raise Refused(f"it deletes self.{name}")
            super().__delattr__(name)

    Observed.__name__, Observed.__qualname__, Observed.__module__ = kind.__name__, kind.__qualname__, kind.__module__
    object.__setattr__(module, "__class__", Observed)
    try:
        yield reads, of_class
    finally:
        object.__setattr__(module, "__class__", kind)


@contextmanager
def _surroundings(on: bool) -> Iterator[None]:
    """Gradients and autocast on, or off."""
    before = [torch.is_autocast_enabled(device) for device in _DEVICES]
    with torch.inference_mode(False), torch.set_grad_enabled(on):
        try:
            for device in _DEVICES:
                torch.set_autocast_enabled(device, on)
            yield
        finally:
            for device, was in zip(_DEVICES, before, strict=True):
                torch.set_autocast_enabled(device, was)


def _modes() -> tuple[Any, ...]:
    autocast = [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES]
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # those of activation checkpointing, for one
    functions = torch._C._len_torch_function_stack()
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        hooks,
        functions,
        *autocast,
    )


class _NothingComputed(TorchDispatchMode):
    """Refuses what is computed while a forward is traced: the trace would have its result for ever."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise Refused(f"it computes with tensors that come from nowhere ({func})")


def _tracer(made: list[weakref.ref[Any]], given: dict[str, Any]) -> Any:
    from torch import fx

    class Proxy(fx.Proxy):
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            """Asked by isinstance. What stands for a tensor here is none, so that the answer would be wrong."""
            frame = sys._getframe(1)
            while frame.f_code.co_name == "__instancecheck__" and frame.f_back is not None:
                frame = frame.f_back
            if not str(frame.f_globals.get("__name__")).startswith(_ASKING):
                raise Refused("it asks for the type of what it is given")
            return type(self)

    for name in _IN_PLACE:  # which torch.fx takes for those that make a new tensor
        setattr(Proxy, f"__{name}__", _in_place(getattr(operator, name)))

    class Tracer(fx.Tracer):
        proxy_buffer_attributes = True
        modes = _modes()
        thread = threading.get_ident()

        # What other threads call meanwhile comes here too.
        def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
            if threading.get_ident() != self.thread:
                return forward(*args, **kwargs)
            return super().call_module(m, forward, args, kwargs)

        def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
            if threading.get_ident() != self.thread:
                return attr_val
            return super().getattr(attr, attr_val, parameter_proxy_cache)

        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return True

        def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, Any]:
            _, *names = inspect.signature(inspect.unwrap(root_fn)).parameters
            function, args = super().create_args_for_root(root_fn, is_module, concrete_args)
            return function, [args[0], *(given.get(n, a) for n, a in zip(names, args[1:], strict=True))]

        def create_node(self, *args: Any, **kwargs: Any) -> Any:
            if _modes() != self.modes:
                raise Refused("part of it works under a mode of its own (autocast, gradients, checkpointing, dtype)")
            return super().create_node(*args, **kwargs)

        def proxy(self, node: Any) -> Any:
            new = Proxy(node, self)
            made.append(weakref.ref(new))
            return new

    return Tracer()


def _in_place(function: Any) -> Any:
    def method(self: Any, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return method


_IN_PLACE = tuple(f"i{name}" for name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"])
_ASKING = ("torch.fx", "torch._", "torch.utils._", "torch.overrides", __name__)
