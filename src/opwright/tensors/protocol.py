"""PyTorch's order of asking: which types a call asks, and what happens when none of them answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from opwright.tensors.signature import dotted


def leaves(value: Any) -> Iterator[Any]:
    """Every value inside lists, tuples and dicts.

    >>> list(leaves((1, [2, {"a": 3}])))
    [1, 2, 3]
    """
    if isinstance(value, (list, tuple)):
        for v in value:
            yield from leaves(v)
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    else:
        yield value


def replace(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` applied to every value inside lists, tuples and dicts.

    >>> replace((1, [2, {"a": 3}]), str)
    ('1', ['2', {'a': '3'}])
    """
    if isinstance(value, tuple):
        changed = [replace(v, change) for v in value]
        if hasattr(value, "_fields"):  # a namedtuple
            return type(value)(*changed)
        # torch.return_types take one sequence, as tuple does; torch.Size would refuse what is no int
        return tuple(changed) if isinstance(value, torch.Size) else type(value)(changed)
    if isinstance(value, list):
        return [replace(v, change) for v in value]
    if isinstance(value, dict):
        return {k: replace(v, change) for k, v in value.items()}
    return change(value)


def asked(values: Iterable[Any]) -> tuple[type, ...]:
    """The types that PyTorch asks about a call, in its order: left to right, but a subclass before its base."""
    order: list[type] = []
    for value in values:
        kind = type(value)
        if kind in order or kind is torch.Tensor or not hasattr(kind, "__torch_function__"):
            continue
        if kind.__torch_function__ is torch._C._disabled_torch_function_impl:
            continue
        place = next((i for i, other in enumerate(order) if issubclass(kind, other)), len(order))
        order.insert(place, kind)
    return tuple(order)


def ask(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `function` through `__torch_function__` as PyTorch's own entry would.

    torch.Tensor's methods refuse to be called on what is no Tensor before they ask anyone, so x.add(y) and
    x + y on a tensor-like type come through here.
    """
    present = list(leaves((args, kwargs)))
    types = asked(present)
    if not torch.compiler.is_compiling() and torch._C._is_torch_function_mode_enabled():
        return torch.overrides.handle_torch_function(function, present, *args, **kwargs)
    for kind in types:
        result = kind.__torch_function__(function, types, args, kwargs)  # type: ignore[attr-defined]
        if result is not NotImplemented:
            return result
    if len(types) == 1:  # a dense operator that declined; Python goes on to the other operand's
        return NotImplemented
    raise TypeError(conflict(function, types))


def conflict(function: Callable[..., Any], types: Iterable[type]) -> str:
    """The sentence for a call that none of its types takes."""
    names = [t.__name__ for t in types]
    return (
        f"{dotted(function)}: none of {' and '.join(names)} knows the others; let one of them know them "
        f"(class {names[0]}(TensorLike, knows=({', '.join(names[1:])},))), or pass one as .dense()"
    )
