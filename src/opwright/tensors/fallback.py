"""What happens to a function without an override: convert and call, or refuse."""

from __future__ import annotations

import inspect
import math
import os
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from opwright.tensors.operators import Operators
from opwright.tensors.protocol import leaves, replace
from opwright.tensors.signature import dotted
from opwright.tensors.spelling import IN_PLACE_OPERATORS

if TYPE_CHECKING:
    from opwright.tensors.like import TensorLike

Fallback = Literal["dense", "error"]

# What belongs to one tensor's memory or history. Asked of a dense copy, each would be a lie.
OWN_MEMORY = frozenset(
    {
        "backward",
        "data",
        "data_ptr",
        "grad",
        "grad_dtype",
        "grad_fn",
        "is_leaf",
        "is_shared",
        "is_set_to",
        "output_nr",
        "pin_memory",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "retain_grad",
        "retains_grad",
        "share_memory_",
        "storage",
        "storage_type",
        "untyped_storage",
        "volatile",
    }
)

_warned: dict[tuple[str, str, str], object] = {}


class DenseWarning(UserWarning):
    """A tensor-like argument was converted to a dense tensor."""


def fall_back(cls: type[TensorLike], function: Callable[..., Any], args: Any, kwargs: Any, declined: bool) -> Any:
    """Do what `cls` chose for functions without an override."""
    name = dotted(function)
    if cls.fallback == "error":
        why = f"does not take ({_types(args, kwargs)})" if declined else "is missing"
        raise TypeError(
            f"{name}: the override for {cls.__name__} {why}; write @{cls.__name__}.implements({_said(name)}), or "
            f"choose fallback='dense', or call it on .dense()"
        )
    _refuse_writes(name, function, args, kwargs)
    if name.rpartition(".")[2] in OWN_MEMORY:
        raise TypeError(f"{name}: a {cls.__name__} has no memory or history of its own; ask the tensors it is made of")
    if not torch.compiler.is_compiling():
        for value in leaves((args, kwargs)):
            if isinstance(value, Operators):
                guard(value, name)
        _guard_result(cls, name, function, args, kwargs)
        if cls.warn:
            _warn(cls, name)
    return function(*replace(args, to_dense), **replace(kwargs, to_dense))


def to_dense(value: Any) -> Any:
    """A tensor-like value as a Tensor; anything else as it is."""
    if not isinstance(value, Operators):
        return value
    dense = value.dense()
    if not isinstance(dense, Tensor) or dense.shape != torch.Size(value.shape):
        got = f"shape {tuple(dense.shape)}" if isinstance(dense, Tensor) else type(dense).__name__
        raise TypeError(
            f"{type(value).__name__}.dense must return a Tensor of its own shape {tuple(value.shape)}, got {got}"
        )
    return dense


def guard(value: Any, name: str, shape: tuple[int, ...] | None = None) -> None:
    """Raise ValueError before `name` allocates a dense form larger than the type allows."""
    size = math.prod(value.shape if shape is None else shape) * value.dtype.itemsize
    cls = type(value)
    if size > cls.dense_limit:
        what = f"{cls.__name__} of shape {tuple(value.shape)}"
        raise ValueError(
            f"{name}: a dense {what} would need {_bytes(size)}, more than {cls.__name__}.dense_limit "
            f"({_bytes(cls.dense_limit)}); use a function that {cls.__name__} implements, or raise the limit"
        )


def _guard_result(cls: type[TensorLike], name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Raise ValueError before a function such as torch.kron makes much more of its arguments than they are."""
    sizes = [math.prod(v.shape) for v in leaves((args, kwargs)) if isinstance(v, (Tensor, Operators))]
    if math.prod(sizes) <= cls.dense_limit // 16:  # the widest element has 16 bytes
        return
    try:
        result = function(*replace(args, _meta), **replace(kwargs, _meta))
    except Exception:
        return  # not every function tells the shape of its result before it computes it
    for value in leaves(result):
        if isinstance(value, Tensor) and value.nbytes > cls.dense_limit:
            raise ValueError(
                f"{name}: its dense result of shape {tuple(value.shape)} would need {_bytes(value.nbytes)}, more than "
                f"{cls.__name__}.dense_limit ({_bytes(cls.dense_limit)}); raise the limit if that is what you want"
            )


def _meta(value: Any) -> Any:
    if isinstance(value, Operators):
        return torch.empty(tuple(value.shape), dtype=value.dtype, device="meta")
    return value.detach().to("meta") if isinstance(value, Tensor) else value


def writes(function: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
    """The arguments that a call would write to."""
    name = dotted(function).rpartition(".")[2]
    written = list(leaves(kwargs.get("out")))
    in_place = name in ("__setitem__", "__delitem__") or name in IN_PLACE_OPERATORS
    if in_place or (name.endswith("_") and not name.endswith("__")) or _asks_in_place(function, args, kwargs):
        written += list(leaves(args[0] if args else next(iter(kwargs.values()), None)))  # torch.foreach takes lists
    return written


def _asks_in_place(function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    if kwargs.get("inplace"):
        return True
    if not inspect.isfunction(function) or "inplace" not in function.__code__.co_varnames:
        return False
    place = list(function.__code__.co_varnames).index("inplace")
    return len(args) > place and bool(args[place])


def _refuse_writes(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    for value in writes(function, args, kwargs):
        if isinstance(value, Operators):
            kind = type(value).__name__
            raise TypeError(
                f"{name}: would write to a {kind}, whose dense form is a copy; implement it for {kind}, or write "
                f"to x = x.dense() instead"
            )


def _warn(cls: type[TensorLike], name: str) -> None:
    """Once for each function and place in the user's code."""
    frame = sys._getframe(1)
    depth = 1
    inside = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        frame = frame.f_back
        depth += 1
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    mine = object()
    if _warned.setdefault((cls.__qualname__, name, place), mine) is not mine:
        return
    warnings.warn(f"{name}: {cls.__name__} turns dense at {place}", DenseWarning, stacklevel=depth + 1)


def _types(args: Any, kwargs: Any) -> str:
    return ", ".join([type(v).__name__ for v in args] + [f"{k}={type(v).__name__}" for k, v in kwargs.items()])


def _said(name: str) -> str:
    """What to pass to `implements`: a property's getter, else the name itself."""
    last = name.rpartition(".")[2]
    attribute = getattr(torch.Tensor, last, None) if name.startswith("torch.Tensor.") else None
    return name if attribute is None or callable(attribute) else f"{name}.__get__"


def _bytes(count: int) -> str:
    """A size in words: `4.0 TB`.

    >>> _bytes(4 * 10**12)
    '4.0 TB'
    """
    size = float(count)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.1f} {unit}" if unit != "B" else f"{count} B"
