"""Every kind of signature: complex numbers, lists, options, several results, writing in place."""

import enum
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

import opwright as ow

from ..copies import copied

FLOATS = (torch.float32, torch.float64)
NUMBERS = (*FLOATS, torch.complex64, torch.complex128)


class Mode(enum.Enum):
    SUM = 1
    MEAN = 2


class Parts(NamedTuple):
    low: Tensor
    high: Tensor
    positive: Tensor


@ow.op(namespace="awkward")
def complex_product(x: Tensor, y: Tensor) -> Tensor:
    """x · conj(y)."""
    ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")
    return x * y.conj()


@ow.op(namespace="awkward")
def magnitude(x: Tensor) -> Tensor:
    """|x|, real for complex x, without a derivative at 0."""
    return x.abs()


@ow.op(namespace="awkward")
def scaled(x: Tensor, a: ow.Number = 2) -> Tensor:
    """a · x, where a may be complex."""
    return a * x


@ow.op(namespace="awkward")
def gathered(xs: list[Tensor], weights: list[float]) -> Tensor:
    """Σ wᵢ xᵢ."""
    ow.require(len(xs) == len(weights) > 0, "xs and weights must be as many")
    total = xs[0] * weights[0]
    for x, w in zip(xs[1:], weights[1:], strict=True):
        total = total + x * w
    return total


@ow.op(namespace="awkward")
def halves(x: Tensor) -> list[Tensor]:
    """x and 1 - x, as a list."""
    return [x + 0, 1 - x]


@ow.op(namespace="awkward")
def shifted(x: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """scale · x + bias, either absent."""
    ow.require(all(t is None or t.shape == x.shape for t in (bias, scale)), "bias and scale must have the shape of x")
    out = x * 1 if scale is None else x * scale
    return out if bias is None else out + bias


@ow.op(namespace="awkward", nondifferentiable=("positive",))
def parted(x: Tensor) -> Parts:
    """The negative part, the positive part, and how many are positive."""
    return Parts(x.clamp_max(0), x.clamp_min(0), (x > 0).sum())


@ow.op(namespace="awkward")
def reduced(x: Tensor, *, mode: Mode = Mode.SUM, times: int = 1) -> Tensor:
    """The sum or the mean of x, some times over."""
    return (x.sum() if mode is Mode.SUM else x.mean()) * times


@ow.op(namespace="awkward")
def doubled_(x: Tensor) -> Tensor:
    """x doubled in place."""
    return x.mul_(2)


@ow.op(namespace="awkward", mutates=("mean",))
def centred(x: Tensor, mean: Tensor, *, momentum: float = 0.1) -> Tensor:
    """x less the mean of its rows, of which a running one is kept."""
    ow.require(x.dim() == 2 and mean.shape == x.shape[1:], "x must be [n, k] and mean [k], got {x.shape}")
    now = x.mean(0)
    mean.lerp_(now.detach(), momentum)
    return x - now


@ow.op(namespace="awkward")
def picked(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x, some of them twice."""
    ow.require(x.dim() == 2 and index.dim() == 1, "x must be [n, k] and index [m], got {x.shape} and {index.shape}")
    return x.index_select(0, index)


_each: ow.Op[..., Any]
for _each in (complex_product, magnitude):
    _each.kernel("cpu", ow.Domain(dtypes=NUMBERS))(copied(_each.reference))
for _each in (gathered, halves, shifted, parted, reduced, centred):
    _each.kernel("cpu", ow.Domain(dtypes=FLOATS))(copied(_each.reference))
scaled.kernel("cpu", ow.Domain(dtypes=NUMBERS))(copied(scaled.reference))
picked.kernel("cpu", ow.Domain(dtypes=(*FLOATS, torch.int64), mixed=True))(copied(picked.reference))


@doubled_.kernel("cpu", ow.Domain(dtypes=FLOATS))
def _(x: Tensor) -> None:
    x.mul_(2)


@complex_product.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5), make(5)
    yield make(4, 3), make(4, 3)


@magnitude.samples
@halves.samples
@parted.samples
@reduced.samples
@doubled_.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5)
    yield make(4, 3)
    yield make(6).round()


@reduced.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 3), {"mode": Mode.MEAN, "times": 3}


@scaled.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5)
    yield make(5), 0.3
    yield make(5), 1 - 2j


@gathered.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield [make(5)], [0.5]
    yield [make(4, 3), make(4, 3), make(4, 3)], [1.0, -2.0, 0.25]


@shifted.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5)
    yield make(5), make(5)
    yield make(5), None, make(5)
    yield make(4, 3), make(4, 3), make(4, 3)


@centred.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 3), make(3)
    yield make(4, 3), make(3), {"momentum": 0.5}


@picked.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5, 3), torch.tensor([0, 4, 4, 1])
    yield make(5, 3), torch.tensor([], dtype=torch.int64)
