"""Right alone and once; wrong in company or the second time."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

FLOATS = (torch.float32, torch.float64)
DENSE = ow.Domain(dtypes=FLOATS, layout="contiguous")
ROW = ow.Domain(dtypes=FLOATS, layout="contiguous", ranks={"x": 1})


def rows(make: ow.Maker) -> Iterator[Any]:
    for n in (1, 7, 1000, 0):
        yield make(n)


@ow.op(namespace="broken")
def race_total(x: Tensor) -> Tensor:
    """The sum of x; all threads add to one total, without asking each other."""
    ow.require(x.dim() == 1, "x must have one dimension, got {x.shape}")
    return x.sum()


@ow.op(namespace="broken")
def race_edge(x: Tensor) -> Tensor:
    """x + 1; each thread also writes its neighbour's first element, with a value that is not right."""
    return x + 1


@ow.op(namespace="broken")
def carry_lost(x: Tensor) -> Tensor:
    """The running sum of x; each thread begins at 0."""
    ow.require(x.dim() == 1, "x must have one dimension, got {x.shape}")
    return x.cumsum(0)


@ow.op(namespace="broken")
def thread_slots(x: Tensor) -> Tensor:
    """The sum of x; one slot a thread, for as many threads as there were at the first call."""
    ow.require(x.dim() == 1, "x must have one dimension, got {x.shape}")
    return x.sum()


@ow.op(namespace="broken")
def two_threads_only(x: Tensor) -> Tensor:
    """x + 1; splits the work in two by itself when PyTorch has more than two threads, and forgets the rest."""
    return x + 1


@ow.op(namespace="broken")
def shared_scratch(x: Tensor) -> Tensor:
    """x + 1 by way of a buffer that all callers share."""
    return x + 1


@ow.op(namespace="broken")
def changing_order(x: Tensor) -> Tensor:
    """The sum of x; from the left at one call and from the right at the next."""
    ow.require(x.dim() == 1, "x must have one dimension, got {x.shape}")
    return x.sum()


@ow.op(namespace="broken")
def draws(x: Tensor) -> Tensor:
    """x + 1; draws a random number that it does not use."""
    return x + 1


@ow.op(namespace="broken")
def rounding_left(x: Tensor) -> Tensor:
    """x + 1; tells the processor to flush subnormal numbers, and leaves it so."""
    return x + 1


@ow.op(namespace="broken")
def threads_left(x: Tensor) -> Tensor:
    """x + 1; sets PyTorch's number of threads for itself, and leaves it so."""
    return x + 1


_each: ow.Op[..., Any]
for _each in (race_total, carry_lost, thread_slots, changing_order):
    _each.samples(rows)
    _each.kernel_file("cpu.cpp", ROW)
for _each in (race_edge, two_threads_only, shared_scratch, draws, rounding_left):
    _each.samples(rows)
    _each.kernel_file("cpu.cpp", DENSE)
threads_left.samples(rows)


@threads_left.kernel("cpu")
def _(x: Tensor) -> Tensor:
    torch.set_num_threads(torch.get_num_threads() + 1)
    return x + 1
