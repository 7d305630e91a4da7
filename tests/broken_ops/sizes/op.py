"""Right for the usual sizes only."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

FLOATS = (torch.float32, torch.float64)
ANY = ow.Domain(dtypes=FLOATS)
ROWS = ow.Domain(dtypes=FLOATS, layout="contiguous", ranks={"x": 2})


@ow.op(namespace="broken")
def empty_mean(x: Tensor) -> Tensor:
    """The mean of each row; of an empty row it is 0 instead of NaN."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.mean(-1)


@ow.op(namespace="broken")
def single_element(x: Tensor) -> Tensor:
    """Each row less its mean; a row of one element is copied as it is."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x - x.mean(-1, keepdim=True)


@ow.op(namespace="broken")
def far_stride(x: Tensor) -> Tensor:
    """x + 1; keeps offsets in 31 bits."""
    return x + 1


@ow.op(namespace="broken")
def short_count(x: Tensor) -> Tensor:
    """x + 1; keeps the number of elements in 16 bits."""
    return x + 1


@ow.op(namespace="broken")
def rank_zero(x: Tensor) -> Tensor:
    """x + 1; gives a scalar the shape (1,)."""
    return x + 1


@ow.op(namespace="broken")
def deep_rank(x: Tensor) -> Tensor:
    """x + 1; knows the strides of the last four dimensions only."""
    return x + 1


@ow.op(namespace="broken")
def empty_crash(x: Tensor) -> Tensor:
    """x + 1; looks at the first element, which an empty tensor does not have."""
    return x + 1


@empty_mean.samples
@single_element.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 4)
    yield make(2, 1)
    yield make(2, 0)
    yield make(0, 3)


@far_stride.samples
@rank_zero.samples
@empty_crash.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5)
    yield make(4, 3)
    yield make()
    yield make(0)


@short_count.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5)
    yield make(70_000)


@deep_rank.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(2, 3)
    yield make(3, 2, 2, 2, 2)
    yield make(2, 2, 3, 1, 2).permute(4, 2, 0, 3, 1)


empty_mean.kernel_file("cpu.cpp", ROWS)
single_element.kernel_file("cpu.cpp", ROWS)
_each: ow.Op[..., Any]
for _each in (far_stride, rank_zero, deep_rank):
    _each.kernel_file("cpu.cpp", ANY)
for _each in (short_count, empty_crash):
    _each.kernel_file("cpu.cpp", ow.Domain(dtypes=FLOATS, layout="contiguous"))
