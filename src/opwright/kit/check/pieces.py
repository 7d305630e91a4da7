"""Tensors in pieces, as DTensor cuts them, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from opwright.kit.check.report import Finding
from opwright.kit.spec.shard import PARTIAL, REPLICATE, Placement

OF_ANY, OF_GRADIENTS = (2.0, 1.0, 0.5, 0.0), (1.0, 0.5, 0.0, 0.5)
"""What a summand has of an element, the other having the rest. Of either sign, which rounding errors grow with; a
gradient is linear in those that come in, as its own property proves."""


def cut(t: Tensor, where: Placement, device: int, pieces: int, weights: Sequence[float] = OF_ANY) -> Tensor:
    """A device's piece of a tensor, in the sizes that DTensor gives them: the last may be smaller, or empty."""
    if where == REPLICATE:
        return t
    if isinstance(where, str):
        return _summand(t, device, pieces, weights)
    each = -(-t.shape[where] // pieces)
    start = min(device * each, t.shape[where])
    return t.narrow(where, start, min(each, t.shape[where] - start))


def _summand(t: Tensor, device: int, pieces: int, weights: Sequence[float]) -> Tensor:
    """A device's summand of a tensor. Each element is the sum of two, on other devices than its neighbour's, so that
    what is linear along some direction alone (a maximum, a norm, an average) passes for no sum. They are multiples by
    powers of two: their sum is exact."""
    places = torch.arange(t.numel(), device=t.device).view(t.shape)
    first = places % pieces
    second = (first + 1 + places // pieces % max(pieces - 1, 1)) % pieces
    real = t.is_floating_point() or t.is_complex()
    chosen = torch.tensor(weights, device=t.device)[places // 2 % len(weights)]
    chosen = torch.where(torch.isfinite(t * 2), chosen, 1) if real else chosen.round()
    mine = torch.where(first == device, chosen, torch.where(second == device, 1 - chosen, 0))
    nothing = torch.zeros_like(t)
    if t.dtype == torch.bool:
        return torch.where(mine > 0, t, nothing)
    return torch.where(mine == 0, nothing, t * mine.to(t.dtype))


_JOINED: dict[str, Callable[[Tensor], Tensor]] = {
    "partial avg": lambda t: t.mean(0),
    "partial max": lambda t: t.amax(0),
    "partial min": lambda t: t.amin(0),
    "partial product": lambda t: t.prod(0),
}
"""What PyTorch's rules make of pieces that are no summands."""


def join(pieces: Sequence[Tensor | None], where: Placement) -> Tensor | None:
    """The whole that pieces are pieces of."""
    there = [p for p in pieces if p is not None]
    if not there:
        return None
    if where == REPLICATE:
        return there[0]
    if where in _JOINED:
        together = torch.stack([p.to(torch.float64) if p.is_floating_point() else p for p in there])
        return _JOINED[where](together).to(there[0].dtype)
    if isinstance(where, str) and any(p.shape != there[0].shape for p in there):
        shapes = ", ".join(str(tuple(p.shape)) for p in there)
        raise Finding(f"results of shapes {shapes} are no summands")
    if where == PARTIAL and there[0].dtype == torch.bool:
        return torch.stack(there).any(0)
    if where == PARTIAL:
        wide = torch.complex128 if there[0].is_complex() else torch.float64
        exact = there[0].is_floating_point() or there[0].is_complex()
        return sum((p.to(wide) for p in there[1:]), there[0].to(wide)).to(there[0].dtype) if exact else sum(there)  # type: ignore[return-value]
    assert isinstance(where, int)
    try:
        return torch.cat(there, where)
    except (RuntimeError, IndexError):
        shapes = ", ".join(str(tuple(p.shape)) for p in there)
        raise Finding(f"results of shapes {shapes} are no pieces along {where}") from None
