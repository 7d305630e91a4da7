"""Elements taken from the wrong places."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

ANY = ow.Domain(dtypes=(torch.float32, torch.float64))


def shapes(make: ow.Maker) -> Iterator[Any]:
    yield make(5)
    yield make(4, 5)
    yield make(2, 3, 4)
    yield make()
    yield make(0, 3)


@ow.op(namespace="broken")
def stride_ignored(x: Tensor) -> Tensor:
    """x + 1; reads x as if it were contiguous."""
    return x + 1


@ow.op(namespace="broken")
def inner_stride_ignored(x: Tensor) -> Tensor:
    """x + 1; takes the last dimension's elements to be neighbours, whatever their stride."""
    return x + 1


@ow.op(namespace="broken")
def offset_ignored(x: Tensor) -> Tensor:
    """x + 1; reads from where the memory begins, not where the tensor does."""
    return x + 1


@ow.op(namespace="broken")
def channels_last_ignored(x: Tensor) -> Tensor:
    """x + 1; takes dense for row-major, which channels_last is not."""
    return x + 1


@ow.op(namespace="broken")
def misaligned(x: Tensor) -> Tensor:
    """x + 1; rounds the address down to what an aligned load wants."""
    return x + 1


@ow.op(namespace="broken")
def output_strides(x: Tensor) -> Tensor:
    """x + 1; its result is always row-major, though the reference keeps the strides of x."""
    return x + 1


@ow.op(namespace="broken")
def broadcast_modulo(x: Tensor, y: Tensor) -> Tensor:
    """x · y; repeats y from its beginning, which is right for leading dimensions only."""
    ow.require(ow.broadcastable(x, y), "x and y must broadcast, got {x.shape} and {y.shape}")
    return x * y


@ow.op(namespace="broken")
def expanded_gradient(x: Tensor) -> Tensor:
    """2 · x; its gradient reads an expanded incoming gradient, as x.sum() gives, as if every element had memory."""
    return x * 2


_each: ow.Op[..., Any]
for _each in (stride_ignored, inner_stride_ignored, offset_ignored, misaligned, output_strides, expanded_gradient):
    _each.samples(shapes)
    _each.kernel_file("cpu.cpp", ANY)
expanded_gradient.backward.kernel_file("cpu.cpp", ANY)


@channels_last_ignored.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(2, 3, 4, 5)
    yield make(4, 5)


channels_last_ignored.kernel_file("cpu.cpp", ANY)


@broadcast_modulo.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3), make(3)
    yield make(4, 3), make(3)
    yield make(4, 3), make(4, 1)
    yield make(2, 3), make()


broadcast_modulo.kernel_file("cpu.cpp", ow.Domain(dtypes=ANY.dtypes, broadcast=True))
