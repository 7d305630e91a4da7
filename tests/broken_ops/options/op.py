"""Wrong for options that no sample has, or for several at once; and formulas that are wrong at a point."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

FLOATS = ow.Domain(dtypes=(torch.float32, torch.float64))
MIXED = ow.Domain(dtypes=(torch.float32, torch.float64), types={"ids": (torch.int64,)})


@ow.op(namespace="broken")
def late_decay(x: Tensor, *, step: int = 1, decay: float = 0.1) -> Tensor:
    """x · decay / (1 + step)."""
    ow.require(step >= 0, "step must not be negative, got {step}")
    return x * (decay / (1 + step))


@ow.op(namespace="broken")
def flags_together(x: Tensor, *, flip: bool = False, centre: bool = False) -> Tensor:
    """x, the other way round if that is asked for, less its first element if that is."""
    ow.require(x.dim() > 0 and x.shape[-1] > 0, "x must have rows that are not empty, got {x.shape}")
    x = x.flip(-1) if flip else x * 1
    return x - x[..., :1] if centre else x


@ow.op(namespace="broken", nondifferentiable=("ids",))
def padding_counts(table: Tensor, ids: Tensor, *, padding: int = -1) -> Tensor:
    """The means of the rows of a table at ids; those that are padding do not count."""
    ow.require(table.is_floating_point() and table.dim() == 2 and ids.dim() == 2, "table and ids must be matrices")
    kept = ids != padding
    ow.require(bool(((ids >= 0) & (ids < table.shape[0]))[kept].all()), "ids must be rows of the table")
    return (table[ids * kept] * kept.unsqueeze(-1)).sum(1) / kept.sum(1, keepdim=True).clamp(min=1)


@padding_counts.fake
def _(table: Tensor, ids: Tensor, padding: int) -> Tensor:
    return table.new_empty(ids.shape[0], table.shape[1])


@ow.op(namespace="broken")
def weights_sorted(xs: list[Tensor], weights: list[float]) -> Tensor:
    """Σ wᵢ xᵢ."""
    ow.require(len(xs) == len(weights) > 0, "xs and weights must be as many")
    ow.require(all(x.shape == xs[0].shape for x in xs), "xs must have one shape")
    return torch.stack([x * w for x, w in zip(xs, weights, strict=True)]).sum(0)


@ow.op(namespace="broken")
def ties_at_one(x: Tensor, *, step: float = 0.3) -> Tensor:
    """x rounded to multiples of a step, ties to even ones."""
    ow.require(x.is_floating_point() and step > 0, "x must be floating-point and step positive")
    return (x / step).round() * step


@ow.op(namespace="broken")
def divides_by_zero(x: Tensor) -> Tensor:
    """The product of each row."""
    ow.require(x.is_floating_point() and x.dim() > 0, "x must be floating-point and have rows")
    return x.prod(-1)


@divides_by_zero.gradient
def _(grad: Tensor, x: Tensor, result: Tensor) -> Tensor:
    return (grad * result).unsqueeze(-1) / x


@late_decay.kernel("cpu", FLOATS)
def _(x: Tensor, *, step: int = 1, decay: float = 0.1) -> Tensor:
    ow.require(step >= 0, "step must not be negative, got {step}")
    return x * (decay / (1 + min(step, 1000)))


@flags_together.kernel("cpu", FLOATS)
def _(x: Tensor, *, flip: bool = False, centre: bool = False) -> Tensor:
    ow.require(x.dim() > 0 and x.shape[-1] > 0, "x must have rows that are not empty, got {x.shape}")
    turned = x.flip(-1) if flip else x * 1
    return turned - x[..., :1] if centre else turned


@padding_counts.kernel("cpu", MIXED)
def _(table: Tensor, ids: Tensor, *, padding: int = -1) -> Tensor:
    kept = ids != padding
    counted = ids >= 0 if padding <= 0 else kept
    return (table[ids * kept] * kept.unsqueeze(-1)).sum(1) / counted.sum(1, keepdim=True).clamp(min=1)


@weights_sorted.kernel("cpu", FLOATS)
def _(xs: list[Tensor], weights: list[float]) -> Tensor:
    return torch.stack([x * w for x, w in zip(xs, sorted(weights), strict=True)]).sum(0)


@ties_at_one.kernel("cpu", FLOATS)
def _(x: Tensor, *, step: float = 0.3) -> Tensor:
    return ((x / step).abs() + 0.5).floor().copysign(x) * step


@late_decay.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9)
    yield make(4, 5), {"step": 3}


@flags_together.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 5)
    yield make(7), {"flip": True}
    yield make(2, 2), {"centre": True}


@padding_counts.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(6, 3), torch.tensor([[0, 5, -1], [2, 2, 2]], device=make.device)


@weights_sorted.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield [make(3, 4), make(3, 4)], [1.0, 3.0]


@ties_at_one.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(33)
    yield make(4, 5), {"step": 0.1}


@divides_by_zero.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 4)
    yield make(7)
