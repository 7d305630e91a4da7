"""What reads and adds by index: bags, segments, histograms, lengths. Every index is checked, and negative ones where
PyTorch takes them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import opwright as ow

FLOATS = (torch.float32, torch.float64)
INDEX = (torch.int64,)


def whole(name: str, index: Tensor, dim: int = 1) -> None:
    ow.require(index.dtype == torch.int64 and index.dim() == dim, f"{name} must be int64 with {dim} dimensions")


@ow.op(namespace="awkward")
def bag(weight: Tensor, index: Tensor, offsets: Tensor) -> Tensor:
    """The sums of rows of a table, a bag of them at a time."""
    ow.require(weight.dim() == 2, "weight must be a matrix, got {weight.shape}")
    whole("index", index)
    whole("offsets", offsets)
    ow.require(offsets.shape[0] > 0, "offsets must not be empty")
    return F.embedding_bag(index, weight, offsets, mode="sum")


@ow.op(namespace="awkward")
def segments(x: Tensor, segment: Tensor, count: int) -> Tensor:
    """The sums of the rows that belong to each segment, in whatever order they come."""
    ow.require(x.dim() == 2 and segment.shape == x.shape[:1], "segment must have an entry for each row of x")
    whole("segment", segment)
    return torch.zeros(count, x.shape[1], dtype=x.dtype, device=x.device).index_add(0, segment, x)


@ow.op(namespace="awkward")
def segment_top(x: Tensor, segment: Tensor, count: int) -> Tensor:
    """The largest element of each segment, -inf where it is empty."""
    ow.require(x.dim() == 1 and segment.shape == x.shape, "segment must have an entry for each element of x")
    whole("segment", segment)
    empty = torch.full((count,), float("-inf"), dtype=x.dtype, device=x.device)
    return empty.scatter_reduce(0, segment, x, "amax", include_self=False)


@ow.op(namespace="awkward")
def take(x: Tensor, index: Tensor) -> Tensor:
    """x[index], which counts from the end where it is negative."""
    ow.require(x.dim() == 2, "x must be a matrix, got {x.shape}")
    whole("index", index)
    return x[index]


@ow.op(namespace="awkward")
def pick(x: Tensor, index: Tensor) -> Tensor:
    """x[r, index[r, j]]."""
    ow.require(x.dim() == 2, "x must be a matrix, got {x.shape}")
    whole("index", index, 2)
    return x.gather(1, index)


@ow.op(namespace="awkward")
def histogram(index: Tensor, bins: int) -> Tensor:
    """How often each number occurs."""
    whole("index", index)
    ow.require(bins >= 0, "bins must not be negative, got {bins}")
    return torch.zeros(bins, dtype=torch.int64, device=index.device).index_add(0, index, torch.ones_like(index))


@ow.op(namespace="awkward")
def ragged_mean(x: Tensor, lengths: Tensor) -> Tensor:
    """The mean of the first lengths[r] elements of each row, 0 where there are none."""
    ow.require(x.dim() == 2 and lengths.shape == x.shape[:1], "lengths must have an entry for each row of x")
    whole("lengths", lengths)
    mask = torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)
    total = torch.where(mask, x, torch.zeros_like(x)).sum(1)
    return total / mask.sum(1).clamp(min=1)


@ow.op(namespace="awkward")
def spread(x: Tensor, lengths: Tensor) -> Tensor:
    """Each element repeated lengths[i] times."""
    ow.require(x.dim() == 1 and lengths.shape == x.shape, "lengths must have an entry for each element of x")
    whole("lengths", lengths)
    return x.repeat_interleave(lengths)


@bag.samples
def _(make: ow.Maker) -> Iterator[Any]:
    index = torch.tensor([3, 0, 0, 9, 5, 1, 2], device=make.device)
    yield make(10, 4), index, torch.tensor([0, 2, 2, 5], device=make.device)
    yield make(10, 3), index, torch.tensor([0], device=make.device)


@segments.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(6, 3), torch.tensor([0, 0, 1, 1, 3, 3], device=make.device), 4
    yield make(4, 5), make(4, dtype=torch.int64, low=0, high=3), 3


@segment_top.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(6), torch.tensor([0, 2, 1, 1, 0, 3], device=make.device), 5


@take.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5, 3), torch.tensor([4, 0, -1, 2], device=make.device)
    yield make(6, 2), make(9, dtype=torch.int64, low=0, high=6)


@pick.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 6), make(3, 4, dtype=torch.int64, low=0, high=6)


@histogram.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield torch.tensor([1, 1, 0, 4, 2], device=make.device), 5
    yield make(30, dtype=torch.int64, low=0, high=7), 9


@ragged_mean.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 7), torch.tensor([7, 0, 3, 1], device=make.device)


@spread.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4), torch.tensor([2, 0, 3, 1], device=make.device)


bag.kernel_file("cpu.cpp", ow.Domain(dtypes=FLOATS, layout="contiguous", types={"index": INDEX, "offsets": INDEX}))
_each: ow.Op[..., Any]
for _each, _name in ((segments, "segment"), (segment_top, "segment"), (take, "index"), (pick, "index")):
    _each.kernel_file("cpu.cpp", ow.Domain(dtypes=FLOATS, layout="contiguous", types={_name: INDEX}))
for _each in (ragged_mean, spread):
    _each.kernel_file("cpu.cpp", ow.Domain(dtypes=FLOATS, layout="contiguous", types={"lengths": INDEX}))
histogram.kernel_file("cpu.cpp", ow.Domain(dtypes=INDEX, layout="contiguous"))
