"""Loops over vectors of eight that end wrong."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

DENSE = ow.Domain(dtypes=(torch.float32, torch.float64), layout="contiguous")


def lengths(make: ow.Maker) -> Iterator[Any]:
    for n in (1, 5, 8, 13, 16, 100):
        yield make(n)
    yield make(3, 5)
    yield make(0)


@ow.op(namespace="broken")
def tail_dropped(x: Tensor) -> Tensor:
    """x + 1; the loop over the remainder begins one late."""
    return x + 1


@ow.op(namespace="broken")
def full_block_masked(x: Tensor) -> Tensor:
    """x + 1; the last block's mask is n % 8 lanes, which is none of them when n is a multiple of eight."""
    return x + 1


@ow.op(namespace="broken")
def row_tails(x: Tensor) -> Tensor:
    """x + 1 by rows; only the last row's remainder is computed."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x + 1


@ow.op(namespace="broken")
def reads_past_end(x: Tensor) -> Tensor:
    """Each element plus its right neighbour; the last one's neighbour is whatever lies behind the tensor."""
    ow.require(x.dim() == 1, "x must have one dimension, got {x.shape}")
    return x + torch.nn.functional.pad(x, (0, 1))[1:]


@ow.op(namespace="broken")
def stale_lanes(x: Tensor) -> Tensor:
    """The sum of each row; the vector that holds the remainder still has lanes of the block before it."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.sum(-1)


_each: ow.Op[..., Any]
for _each in (tail_dropped, full_block_masked):
    _each.samples(lengths)
    _each.kernel_file("cpu.cpp", DENSE)


@row_tails.samples
@stale_lanes.samples
def _(make: ow.Maker) -> Iterator[Any]:
    for shape in ((1, 5), (3, 8), (4, 13), (2, 3), (0, 5), (5, 0)):
        yield make(*shape)


@reads_past_end.samples
def _(make: ow.Maker) -> Iterator[Any]:
    for n in (1, 5, 8, 13, 0):
        yield make(n)


row_tails.kernel_file("cpu.cpp", ow.Domain(dtypes=DENSE.dtypes, layout="contiguous", ranks={"x": 2}))
reads_past_end.kernel_file("cpu.cpp", ow.Domain(dtypes=DENSE.dtypes, layout="contiguous", ranks={"x": 1}))
stale_lanes.kernel_file("cpu.cpp", ow.Domain(dtypes=DENSE.dtypes, layout="contiguous", ranks={"x": 2}))
