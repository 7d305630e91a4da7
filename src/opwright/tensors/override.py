"""One type's implementation of a torch function: registered under every spelling, called, checked, written back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from opwright.tensors.fallback import to_dense
from opwright.tensors.operators import Operators
from opwright.tensors.protocol import ask, leaves
from opwright.tensors.signature import Signature, compare, dotted, learn, returned_wrong
from opwright.tensors.spelling import Spelling, spellings

# An override that enters itself this often within one call is not going to come back.
_DEEPEST = 100


@dataclass(frozen=True)
class Override:
    """A type's own implementation of a torch function, under one of its spellings."""

    function: Callable[..., Any]
    call: Callable[..., Any]
    spelling: Spelling
    signature: Signature | None
    takes_out: bool
    owner: type


def overrides(function: Callable[..., Any], call: Callable[..., Any], owner: type) -> Iterator[Override]:
    """`call` as the override of `function` under each of its spellings, once their signatures agree."""
    compare(call, function, owner.__name__)
    signature = learn(function)
    takes_out = "out" in _parameter_names(call)
    for spelling in spellings(function):
        yield Override(function, call, spelling, signature, takes_out, owner)


def require_overridable(function: Any, cls: type) -> None:
    where = f"{cls.__name__}.implements"
    if not callable(function):
        raise TypeError(f"{where}: needs a torch function, got {function!r}; for a property pass its __get__")
    if function in torch.overrides.get_ignored_functions():
        raise TypeError(f"{where}: PyTorch asks no type about {dotted(function)}, so it cannot be overridden")
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    if torch.overrides.resolve_name(function) is None and "handle_torch_function" not in names:
        known = function in torch.overrides.get_testing_overrides()
        if not known and not isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            raise TypeError(
                f"{where}: {dotted(function)} is no torch function; write @{where}(torch.add) above the override"
            )


def _parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    code = getattr(function, "__code__", None)
    return () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


class _Active(threading.local):
    """The overrides under way in this thread, with the identities of their arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []


_active = _Active()


def run(override: Override, args: Any, kwargs: Any) -> Any:
    """Call an override under one spelling: put the arguments in place, check the result, write where asked."""
    spelling = override.spelling
    if kwargs:
        kwargs = {spelling.rename.get(k, k): v for k, v in kwargs.items()}
        if not args:
            first = override.signature.first if override.signature is not None else {"input"}
            name = next((k for k in kwargs if k in first), None)
            args = () if name is None else (kwargs.pop(name),)
    target = None
    if spelling.kind == "in_place":
        target = args[0]
    elif spelling.kind == "reflected":
        args = (args[1], args[0], *args[2:])
    if kwargs.get("out") is not None and not override.takes_out:
        target = kwargs["out"]
    if "out" in kwargs and not override.takes_out:
        kwargs = {k: v for k, v in kwargs.items() if k != "out"}
    result = override.call(*args, **kwargs) if torch.compiler.is_compiling() else _guarded(override, args, kwargs)
    if result is NotImplemented:
        return result
    wrong = returned_wrong(result, override.signature)
    if wrong is not None:
        forgot = " (is its return missing?)" if result is None else ""
        raise TypeError(
            f"{dotted(override.function)}: the override for {override.owner.__name__} returned "
            f"{type(result).__name__}{forgot}, where PyTorch returns {wrong}; return that or a tensor-like type, or "
            f"NotImplemented for the fallback"
        )
    return result if target is None else _write(override, result, target)


def _guarded(override: Override, args: Any, kwargs: Any) -> Any:
    """Call an override; catch it when it calls itself without end."""
    call = (override.call, tuple(id(v) for v in leaves((args, kwargs))))
    calls = _active.calls
    if call in calls or sum(other is override.call for other, _ in calls) >= _DEEPEST:
        name = dotted(override.function)
        how = "on the same arguments" if call in calls else f"{_DEEPEST} times over"
        raise RecursionError(
            f"{name}: the override for {override.owner.__name__} calls {name} {how} and would never end; compute on "
            f"the tensors inside its arguments or on .dense(), or return NotImplemented for the fallback"
        )
    calls.append(call)
    try:
        return override.call(*args, **kwargs)
    finally:
        calls.pop()


def _write(override: Override, result: Any, target: Any) -> Any:
    """Put a result where an in-place form or `out=` wants it."""
    if isinstance(target, (tuple, list)):
        return type(target)(_write(override, r, t) for r, t in zip(result, target, strict=True))
    name = dotted(override.spelling.key) if callable(override.spelling.key) else dotted(override.function)
    if not torch.can_cast(result.dtype, target.dtype):
        raise TypeError(f"{name}: the result is {result.dtype} and cannot be written to a target of {target.dtype}")
    if isinstance(target, Operators):
        if type(result) is not type(target) or result.shape != target.shape:
            raise TypeError(
                f"{name}: the result is a {type(result).__name__} of shape {tuple(result.shape)} and does not fit into "
                f"a {type(target).__name__} of shape {tuple(target.shape)}; use the form that returns a new value"
            )
        target.become(result if result.dtype == target.dtype else ask(torch.Tensor.to, result, target.dtype))
        return target
    if target.shape != result.shape:
        if target.numel() != 0 or override.spelling.kind == "in_place":
            raise ValueError(
                f"{name}: the result has shape {tuple(result.shape)} and the target {tuple(target.shape)}; pass a "
                f"target of that shape, or an empty one as out="
            )
        target.resize_(result.shape)
    return target.copy_(to_dense(result))
