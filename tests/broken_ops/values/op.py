"""Right for numbers of ordinary size, and for those that samples are likely to hold."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import opwright as ow

FLOATS = (torch.float32, torch.float64)
DENSE = ow.Domain(dtypes=FLOATS, layout="contiguous")
ROWS = ow.Domain(dtypes=FLOATS, layout="contiguous", ranks={"x": 2})


def matrix(x: Tensor) -> None:
    ow.require(x.is_floating_point() and x.dim() == 2, "x must be a matrix of floats, got {x.dtype} {x.shape}")


def whole(make: ow.Maker, *shape: int) -> Tensor:
    dtype = torch.int64 if make.dtype.is_floating_point or make.dtype.is_complex else make.dtype
    return make(*shape, dtype=dtype, low=-50, high=50)


@ow.op(namespace="broken")
def no_maximum(x: Tensor) -> Tensor:
    """Softmax; exp overflows, since no maximum is subtracted."""
    matrix(x)
    return torch.softmax(x, -1)


@ow.op(namespace="broken")
def early_maximum(x: Tensor) -> Tensor:
    """Softmax; the maximum is that of a row's first 24 elements."""
    matrix(x)
    return torch.softmax(x, -1)


@ow.op(namespace="broken")
def wide_maximum(x: Tensor) -> Tensor:
    """Softmax; the maximum is that of a row's first 1024 elements."""
    matrix(x)
    return torch.softmax(x, -1)


@ow.op(namespace="broken")
def clipped(x: Tensor) -> Tensor:
    """x³, of numbers up to 100 only."""
    return x * x * x


@ow.op(namespace="broken")
def tiny_dropped(x: Tensor) -> Tensor:
    """x / 3, and 0 for numbers below a millionth."""
    return x / 3


@ow.op(namespace="broken")
def soft_plus(x: Tensor) -> Tensor:
    """log(1 + eˣ), linear beyond a threshold that comes too early."""
    return F.softplus(x, threshold=60.0)


@ow.op(namespace="broken")
def one_pass(x: Tensor) -> Tensor:
    """The variance of each row as the mean of squares less the square of the mean."""
    matrix(x)
    ow.require(x.shape[1] > 0, "x must have rows that are not empty, got {x.shape}")
    return x.var(-1, correction=0)


@ow.op(namespace="broken")
def whole_in_doubles(x: Tensor, y: Tensor) -> Tensor:
    """x + y; 64-bit integers on the way through doubles."""
    ow.require(x.shape == y.shape and x.dtype == y.dtype, "x and y must have one shape and dtype")
    return x + y


@ow.op(namespace="broken")
def whole_in_floats(x: Tensor) -> Tensor:
    """3 x; 32-bit integers on the way through floats."""
    return x * 3


@ow.op(namespace="broken")
def half_away(x: Tensor, *, scale: float = 0.5) -> Tensor:
    """x / scale as an integer; ties go away from zero and not to even."""
    ow.require(x.is_floating_point() and scale > 0, "x must be floating-point and scale positive")
    ow.require(bool((x.abs() < 1e9 * scale).all()), "x must fit into an integer")
    return torch.round(x / scale).to(torch.int64)


@ow.op(namespace="broken")
def dead_row(x: Tensor) -> Tensor:
    """Softmax; a row of -inf becomes zeros."""
    matrix(x)
    return torch.softmax(x, -1)


@ow.op(namespace="broken")
def zero_row(x: Tensor) -> Tensor:
    """Each row divided by its length; a row of zeros becomes NaN."""
    matrix(x)
    return x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12)


@ow.op(namespace="broken")
def low_start(x: Tensor) -> Tensor:
    """The largest integer of each row, which is searched for from -1000 upwards."""
    ow.require(x.dim() == 2 and x.shape[1] > 0 and not x.is_floating_point(), "x must be a matrix of integers")
    return x.amax(-1)


@ow.op(namespace="broken")
def zeros_skipped(x: Tensor) -> Tensor:
    """cos x; a tensor of zeros alone is taken for nothing to do."""
    return x.cos()


_each: ow.Op[..., Any]
for _each in (no_maximum, early_maximum, wide_maximum, one_pass, dead_row, zero_row):

    @_each.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(3, 5)
        yield make(2, 33)

    _each.kernel_file("cpu.cpp", ROWS)
for _each in (clipped, tiny_dropped, soft_plus, zeros_skipped):

    @_each.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(9)
        yield make(4, 5)

    _each.kernel_file("cpu.cpp", DENSE)


@half_away.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9)
    yield make(4, 5), {"scale": 0.3}


@whole_in_doubles.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield whole(make, 9), whole(make, 9)


@whole_in_floats.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield whole(make, 9)


@low_start.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield whole(make, 3, 5)


half_away.kernel_file("cpu.cpp", DENSE)
whole_in_doubles.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.int64,), layout="contiguous"))
whole_in_floats.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.int32,), layout="contiguous"))
low_start.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.int64,), layout="contiguous", ranks={"x": 2}))
