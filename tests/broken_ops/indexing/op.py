"""Right for the indices that a sample writes out: sorted, each once, none negative, all within bounds."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import opwright as ow

FLOATS = (torch.float32, torch.float64)


def domain(*names: str) -> ow.Domain:
    return ow.Domain(dtypes=FLOATS, layout="contiguous", types=dict.fromkeys(names, (torch.int64,)))


def whole(name: str, index: Tensor) -> None:
    ow.require(index.dtype == torch.int64 and index.dim() == 1, f"{name} must be int64 with one dimension")


@ow.op(namespace="broken")
def sorted_only(x: Tensor, segment: Tensor) -> Tensor:
    """The sums of segments; one ends where the next number comes."""
    ow.require(x.dim() == 1 and segment.shape == x.shape, "segment must have an entry for each element of x")
    whole("segment", segment)
    return torch.zeros(8, dtype=x.dtype, device=x.device).index_add(0, segment, x)


@ow.op(namespace="broken")
def last_wins(x: Tensor, index: Tensor) -> Tensor:
    """Rows added up by index; of several for one place the last remains."""
    ow.require(x.dim() == 2 and index.shape == x.shape[:1], "index must have an entry for each row of x")
    whole("index", index)
    return torch.zeros(8, x.shape[1], dtype=x.dtype, device=x.device).index_add(0, index, x)


@ow.op(namespace="broken")
def negative_as_zero(x: Tensor, index: Tensor) -> Tensor:
    """x[index]; a negative index, which counts from the end, is taken for 0."""
    ow.require(x.dim() == 1, "x must have one dimension, got {x.shape}")
    whole("index", index)
    return x[index]


@ow.op(namespace="broken")
def wraps_around(x: Tensor, index: Tensor) -> Tensor:
    """Elements by index; one beyond the end comes round to the beginning and is no error."""
    ow.require(x.dim() == 1, "x must have one dimension, got {x.shape}")
    whole("index", index)
    return x.index_select(0, index)


@ow.op(namespace="broken")
def ignored_counted(x: Tensor, target: Tensor, *, ignore: int = -100) -> Tensor:
    """The mean of the elements at the targets, less those to ignore; which are counted all the same."""
    ow.require(x.dim() == 2 and target.shape == x.shape[:1], "target must have an entry for each row of x")
    whole("target", target)
    return F.nll_loss(x, target, ignore_index=ignore)


@ow.op(namespace="broken")
def empty_bag(weight: Tensor, index: Tensor, offsets: Tensor) -> Tensor:
    """Sums of rows of a table by bags; an empty bag takes the row of the next."""
    ow.require(weight.dim() == 2, "weight must be a matrix, got {weight.shape}")
    whole("index", index)
    whole("offsets", offsets)
    ow.require(offsets.shape[0] > 0, "offsets must not be empty")
    return F.embedding_bag(index, weight, offsets, mode="sum")


@sorted_only.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(6), torch.tensor([0, 0, 1, 3, 3, 7], device=make.device)


@last_wins.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 3), torch.tensor([2, 0, 7, 5], device=make.device)


@negative_as_zero.samples
@wraps_around.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(6), torch.tensor([5, 0, 2, 2], device=make.device)


@ignored_counted.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 6), torch.tensor([0, 5, 3, 2], device=make.device)


@empty_bag.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(10, 4), torch.tensor([3, 0, 0, 9, 5, 1], device=make.device), torch.tensor([0, 2, 5], device=make.device)


sorted_only.kernel_file("cpu.cpp", domain("segment"))
for _each in (last_wins, negative_as_zero, wraps_around):
    _each.kernel_file("cpu.cpp", domain("index"))
ignored_counted.kernel_file("cpu.cpp", domain("target"))
empty_bag.kernel_file("cpu.cpp", domain("index", "offsets"))
