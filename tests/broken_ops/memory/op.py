"""Memory that is not theirs, or not yet written, or never given back."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

ANY = ow.Domain(dtypes=(torch.float32, torch.float64))
DENSE = ow.Domain(dtypes=ANY.dtypes, layout="contiguous")
SINGLES = ow.Domain(dtypes=(torch.float32,), layout="contiguous")


def shapes(make: ow.Maker) -> Iterator[Any]:
    for shape in ((5,), (8,), (3, 7), (0,)):
        yield make(*shape)


@ow.op(namespace="broken")
def writes_past_input(x: Tensor) -> Tensor:
    """x + 1; clears the other half of the last pair of x before it reads it."""
    return x + 1


@ow.op(namespace="broken")
def writes_past_output(x: Tensor) -> Tensor:
    """x + 1; stores whole pairs, also where the last one is half."""
    return x + 1


@ow.op(namespace="broken")
def writes_past_aten_output(x: Tensor) -> Tensor:
    """The same in memory that PyTorch's own operator allocated for it."""
    return x + 1


@ow.op(namespace="broken")
def writes_input(x: Tensor) -> Tensor:
    """relu(x) + 1; sets the negative elements of x itself to 0."""
    return x.clamp_min(0) + 1


@ow.op(namespace="broken")
def alias_input(x: Tensor, *, a: float = 1.0) -> Tensor:
    """a · x; for a = 1 it returns x itself."""
    return x * a


@ow.op(namespace="broken")
def uninitialised(x: Tensor) -> Tensor:
    """relu(x); writes the positive elements only."""
    return x.clamp_min(0)


@ow.op(namespace="broken")
def accumulates_into_empty(x: Tensor) -> Tensor:
    """The sum of each row, added to whatever the result's memory holds."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.sum(-1)


@ow.op(namespace="broken")
def stale_cache(x: Tensor) -> Tensor:
    """x + 1; remembers the last result and takes the address of x for its contents."""
    return x + 1


@ow.op(namespace="broken")
def keeps_input(x: Tensor) -> Tensor:
    """x + 1; holds on to the last x it saw."""
    return x + 1


@ow.op(namespace="broken")
def leaks(x: Tensor) -> Tensor:
    """x + 1; allocates a workspace at each call and frees none."""
    return x + 1


_each: ow.Op[..., Any]
for _each in (writes_past_input, writes_past_output, writes_past_aten_output):
    _each.samples(shapes)
    _each.kernel_file("cpu.cpp", SINGLES)
for _each in (writes_input, uninitialised, stale_cache, keeps_input, leaks):
    _each.samples(shapes)
    _each.kernel_file("cpu.cpp", ANY)


@alias_input.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5), {"a": 2.0}
    yield make(4, 3), {"a": 1.0}


alias_input.kernel_file("cpu.cpp", ANY)


@accumulates_into_empty.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 4)
    yield make(16, 5)
    yield make(2, 0)


accumulates_into_empty.kernel_file("cpu.cpp", ow.Domain(dtypes=DENSE.dtypes, layout="contiguous", ranks={"x": 2}))
