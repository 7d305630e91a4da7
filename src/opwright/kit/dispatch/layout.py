"""How the results of what was adopted lie in memory: as the fake kernel promises, whatever the original gives.

A graph is compiled for the strides that were promised, and ends with an error, or reads other elements, where a call
inside it gives others. Of an extension's function nobody can ask for them, so that results are copied.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.dispatch import fake
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op

MOST = 256
"""Calls whose promises are remembered."""


_known: weakref.WeakKeyDictionary[Any, dict[Any, list[tuple[tuple[int, ...], bool]]]] = weakref.WeakKeyDictionary()
"""By operator and by how the arguments of a call lie: the strides of its results, and whether those are contiguous. Not
in the kernels themselves, which travel to other processes."""


def as_promised(op: Op[..., Any], outs: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Results with the strides that the fake kernel promises: those that have others are copied."""
    given = (*args, *kwargs.values())
    ranks = [_rank(v) for v in (*given, *outs)]
    # Promised once, it is promised for other sizes too: calls of ever new sizes are not asked about again.
    if None not in ranks and all(contiguous for _, contiguous in _promised(op, tuple(ranks), args, kwargs)):
        return [*outs]
    found, promised = tensors(outs), _promised(op, tuple(map(_place, given)), args, kwargs)
    if len(promised) != len(found):
        return [*outs]
    laid = iter([_laid(t, strides) for t, (strides, _) in zip(found, promised, strict=True)])
    return [_each(out, laid) for out in outs]


def _promised(
    op: Op[..., Any], place: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[tuple[int, ...], bool]]:
    known, key = _known.setdefault(op, {}), (*place, *kwargs)
    found = known.get(key)
    if found is None:
        if len(known) >= MOST:
            known.clear()  # which another thread may be reading
        found = known[key] = [(t.stride(), t.is_contiguous()) for t in _faked(op, args, kwargs)]
    return found


def _faked(op: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """What the fake kernel gives; nothing where it cannot tell, as of a reference that reads values."""
    mode = private.fake_tensor_mode()

    def faked(value: Any) -> Any:
        if isinstance(value, Tensor):
            return mode.from_tensor(value)
        return [faked(v) for v in value] if isinstance(value, (list, tuple)) and tensors(value) else value

    try:
        with private.unlogged_fakes(), mode, torch.no_grad():
            return tensors(fake.run(op, tuple(map(faked, args)), {n: faked(v) for n, v in kwargs.items()}))
    except Exception:
        return []


def _rank(value: Any) -> Any:
    """What of an argument decides on strides. Of contiguous tensors the number of dimensions; None of others, and of
    those with a side of one or none, contiguous turned round as well. Of numbers, integers alone."""
    if isinstance(value, Tensor):
        return value.dim() if value.is_contiguous() and all(size > 1 for size in value.shape) else None
    if isinstance(value, (list, tuple)):
        ranks = tuple(map(_rank, value))
        return None if None in ranks else ranks
    return ("", value) if isinstance(value, (int, str)) else type(value)


def _place(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.stride()
    return tuple(map(_place, value)) if isinstance(value, (list, tuple)) else _rank(value)


def _each(out: Any, laid: Iterator[Tensor]) -> Any:
    if isinstance(out, Tensor):
        return next(laid)
    return [_each(o, laid) for o in out] if isinstance(out, (list, tuple)) else out


def _laid(t: Tensor, strides: tuple[int, ...]) -> Tensor:
    if len(strides) != t.dim() or not t.numel():
        return t  # another shape, which the check tells
    steps = [(a, b) for a, b, s in zip(t.stride(), strides, t.shape, strict=True) if s > 1]
    if all(a == b for a, b in steps) or any(b == 0 for _, b in steps):  # what is expanded cannot be written to
        return t
    return torch.empty_strided(t.shape, strides, dtype=t.dtype, device=t.device).copy_(t)
