"""Other ways to the same values, in plain PyTorch, as programs write them: counted for searched, in tiles, scaled on
the way, divided by what may be nothing."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

FLOATS = (torch.float32, torch.float64)


@ow.op(namespace="awkward")
def bins(x: Tensor, edges: Tensor, *, right: bool = False) -> Tensor:
    """Between which edges x lies; the kernel counts those below it, in whatever order they are."""
    ow.require(edges.dim() == 1 and edges.dtype == x.dtype, "edges must be a vector of the dtype of x")
    ow.require(x.is_floating_point(), "x must be floating-point, got {x.dtype}")
    return torch.bucketize(x, edges, right=right)


@ow.op(namespace="awkward")
def tiled_softmax(x: Tensor) -> Tensor:
    """The softmax of rows; the kernel goes through tiles of 48, and takes 64 dimensions as PyTorch's maximum does."""
    ow.require(x.is_floating_point() and x.dim() > 0, "x must be floating-point and have rows, got {x.dtype} {x.shape}")
    return x.softmax(-1)


@ow.op(namespace="awkward")
def hypotenuse(x: Tensor, y: Tensor) -> Tensor:
    """√(x² + y²); the kernel's squares are never too large."""
    ow.require(x.is_floating_point() and x.dtype == y.dtype, "x and y must be floating-point and of one dtype")
    ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")
    return (x * x + y * y).sqrt()


@ow.op(namespace="awkward")
def deviation(x: Tensor, *, correction: int = 1) -> Tensor:
    """The standard deviation of rows, infinite where the correction takes all degrees of freedom."""
    ow.require(x.is_floating_point() and x.dim() > 0, "x must be floating-point and have rows, got {x.dtype} {x.shape}")
    square = (x - x.mean(-1, keepdim=True)).square().sum(-1)
    return (square / max(x.shape[-1] - correction, 0)).sqrt()


@bins.kernel("cpu", ow.Domain(dtypes=FLOATS, ranks={"edges": 1, "x": range(1, 9)}))
def _(x: Tensor, edges: Tensor, *, right: bool = False) -> Tensor:
    each = x.unsqueeze(-1)
    return (((each >= edges) if right else (each > edges)) | each.isnan()).sum(-1)


@tiled_softmax.kernel("cpu", ow.Domain(dtypes=FLOATS, layout="contiguous", sizes="x[..., n]"))
def _(x: Tensor) -> Tensor:
    if x.numel() == 0:
        return torch.empty_like(x)
    most = x.new_full((*x.shape[:-1], 1), -torch.inf)
    total = torch.zeros_like(most)
    for tile in x.split(48, -1):
        now = torch.maximum(most, tile.amax(-1, keepdim=True))
        finite = torch.where(now == -torch.inf, 0.0, now)
        total = total * torch.exp(most - finite) + torch.exp(tile - finite).sum(-1, keepdim=True)
        most = now
    return torch.exp(x - most) / total


@hypotenuse.kernel("cpu", ow.Domain(dtypes=FLOATS, layout="contiguous", sizes="x[m, n] y[m, n]"))
def _(x: Tensor, y: Tensor) -> Tensor:
    a, b = x.abs(), y.abs()
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    share = torch.where(small == 0, 0.0, small / large)
    found = large * (1 + share * share).sqrt()
    return torch.where(large.isinf() & ~small.isnan(), large, found)


@deviation.kernel("cpu", ow.Domain(dtypes=FLOATS, layout="contiguous", sizes="x[..., n]"))
def _(x: Tensor, *, correction: int = 1) -> Tensor:
    wide = x.double()
    square = (wide - wide.mean(-1, keepdim=True)).square().sum(-1)
    return (square / max(x.shape[-1] - correction, 0)).sqrt().to(x.dtype)


@bins.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5, 6), make(4).sort().values
    yield make(9), torch.tensor([-1.0, 0.0, 0.5, 1.5], dtype=make.dtype, device=make.device), {"right": True}


@tiled_softmax.samples
@deviation.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 7)
    yield make(2, 3, 5)


@hypotenuse.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 5), make(4, 5)
