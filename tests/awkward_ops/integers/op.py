"""Whole numbers: division that rounds, remainders with signs, overflow that wraps."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

from ..copies import copied

WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8)


def one_shape(x: Tensor, y: Tensor) -> None:
    ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")


def whole(make: ow.Maker, *shape: int, low: int = -50, high: int = 50) -> Tensor:
    dtype = torch.int64 if make.dtype.is_floating_point or make.dtype.is_complex else make.dtype
    return make(*shape, dtype=dtype, low=low, high=high)


@ow.op(namespace="awkward")
def floor_divide(x: Tensor, y: Tensor) -> Tensor:
    """⌊x / y⌋."""
    one_shape(x, y)
    return torch.div(x, y, rounding_mode="floor")


@ow.op(namespace="awkward")
def remainder(x: Tensor, y: Tensor) -> Tensor:
    """x - y ⌊x / y⌋, with the sign of y."""
    one_shape(x, y)
    return torch.remainder(x, y)


@ow.op(namespace="awkward")
def wrapped_product(x: Tensor, y: Tensor) -> Tensor:
    """x · y, modulo the size of the integers."""
    one_shape(x, y)
    return x * y


@ow.op(namespace="awkward")
def count(x: Tensor) -> Tensor:
    """How many elements of each row are not zero."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return (x != 0).sum(-1)


@ow.op(namespace="awkward")
def exclusive(x: Tensor, y: Tensor) -> Tensor:
    """Whether exactly one of them is zero."""
    one_shape(x, y)
    return (x != 0) != (y != 0)


@ow.op(namespace="awkward")
def true_divide(x: Tensor, y: Tensor) -> Tensor:
    """x / y as a floating-point number, also of integers."""
    one_shape(x, y)
    return x / y


@floor_divide.samples
@remainder.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield whole(make, 30), whole(make, 30, low=1, high=9)
    yield whole(make, 30), -whole(make, 30, low=1, high=9)


@floor_divide.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    yield RuntimeError, "ZeroDivisionError", (torch.tensor([1, 2]), torch.tensor([1, 0]))


@wrapped_product.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield whole(make, 30), whole(make, 30)


@exclusive.samples
@true_divide.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9), make(9, low=1.0, high=9.0)
    yield make(4, 3), make(4, 3, low=1.0, high=9.0)


@count.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 5)
    yield make(3, 40).round()
    yield make(2, 0)


_each: ow.Op[..., Any]
for _each in (floor_divide, remainder, wrapped_product):
    _each.kernel_file("cpu.cpp", ow.Domain(dtypes=WHOLE, layout="contiguous", sizes="x[n] y[n]"))
for _each in (count, exclusive, true_divide):
    _each.kernel("cpu")(copied(_each.reference))
