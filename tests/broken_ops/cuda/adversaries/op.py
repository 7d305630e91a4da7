"""Kernels on a GPU that are right only for what a checker is likely to send, or when nobody else is there."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

SINGLES = ow.Domain(dtypes=(torch.float32,), layout="contiguous")


def shapes(make: ow.Maker) -> Iterator[Any]:
    for shape in ((5,), (300,), (3, 7)):
        yield make(*shape)


def rows(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 5)
    yield make(2, 20)


@ow.op(namespace="broken_cuda")
def shared_buffer(x: Tensor) -> Tensor:
    """x² + 1 by way of a buffer that all streams share."""
    return x * x + 1


@ow.op(namespace="broken_cuda")
def kept_by_address(x: Tensor) -> Tensor:
    """x² + 1, kept by the address of x."""
    return x * x + 1


@ow.op(namespace="broken_cuda")
def kept_by_shape(x: Tensor) -> Tensor:
    """x² + 1, kept by the shape of x."""
    return x * x + 1


@ow.op(namespace="broken_cuda")
def kept_by_first_values(x: Tensor) -> Tensor:
    """x² + 1, kept by the shape and the first and last values of x."""
    return x * x + 1


@ow.op(namespace="broken_cuda")
def right_at_first(x: Tensor) -> Tensor:
    """x² + 1 in the first thousand calls."""
    return x * x + 1


@ow.op(namespace="broken_cuda")
def same_output(x: Tensor) -> Tensor:
    """x² + 1, in the same memory for every x of that shape."""
    return x * x + 1


@ow.op(namespace="broken_cuda")
def joined_by_luck(x: Tensor) -> Tensor:
    """x² + 1 on another stream, for which nobody waits."""
    return x * x + 1


@ow.op(namespace="broken_cuda")
def half_elsewhere(x: Tensor) -> Tensor:
    """x² + 1, the second half of it on a stream that waits for nobody."""
    return x * x + 1


@ow.op(namespace="broken_cuda")
def small_alone(x: Tensor) -> Tensor:
    """x² + 1 of three million elements."""
    return x * x + 1


@ow.op(namespace="broken_cuda")
def near_zero_alone(x: Tensor) -> Tensor:
    """x² + 1, and its tangent far from zero."""
    return x * x + 1


@ow.op(namespace="broken_cuda")
def zeros_left_out(x: Tensor) -> Tensor:
    """x² + 1, unless all of a block is zero."""
    return x * x + 1


@ow.op(namespace="broken_cuda")
def one_length(x: Tensor) -> Tensor:
    """x² + 1, but for one length."""
    return x * x + 1


@ow.op(namespace="broken_cuda")
def by_its_reference(x: Tensor) -> Tensor:
    """x² + 1, which its kernel has its reference compute."""
    return x * x + 1


@ow.op(namespace="broken_cuda")
def first_maximum(x: Tensor) -> Tensor:
    """Softmax with the maximum of a row's first 1024 elements."""
    ow.require(x.dim() == 2 and x.shape[1] > 0, "x must have shape [n, k], got {x.shape}")
    return torch.softmax(x, -1)


@ow.op(namespace="broken_cuda")
def no_maximum_at_all(x: Tensor) -> Tensor:
    """Softmax without a maximum."""
    ow.require(x.dim() == 2 and x.shape[1] > 0, "x must have shape [n, k], got {x.shape}")
    return torch.softmax(x, -1)


@ow.op(namespace="broken_cuda")
def nan_dropped(x: Tensor) -> Tensor:
    """The largest element of each row."""
    ow.require(x.dim() == 2 and x.shape[1] > 0, "x must have shape [n, k], got {x.shape}")
    return x.amax(-1)


@ow.op(namespace="broken_cuda")
def one_warp(x: Tensor) -> Tensor:
    """The sum of a row's first 32 elements."""
    ow.require(x.dim() == 2 and x.shape[1] > 0, "x must have shape [n, k], got {x.shape}")
    return x.sum(-1)


@ow.op(namespace="broken_cuda")
def cleared_once(x: Tensor) -> Tensor:
    """The sum of all elements, in a variable that is cleared at the first call."""
    return x.sum()


@ow.op(namespace="broken_cuda", nondifferentiable="index")
def last_remains(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Sums by index, of which the last addend remains."""
    ow.require(x.dim() == 1 and index.shape == x.shape, "x and index must be rows, got {x.shape} and {index.shape}")
    return x.new_zeros(size).index_add(0, index, x)


@last_remains.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4), torch.tensor([3, 0, 2, 1], device=make.device), 5


@by_its_reference.kernel("cuda", SINGLES)
def _(x: Tensor) -> Tensor:
    out: Tensor = by_its_reference.reference(x)
    return out


each: ow.Op[..., Any]
for each in (
    shared_buffer,
    kept_by_address,
    kept_by_shape,
    kept_by_first_values,
    right_at_first,
    same_output,
    joined_by_luck,
    half_elsewhere,
    small_alone,
    near_zero_alone,
    zeros_left_out,
    one_length,
    by_its_reference,
    cleared_once,
):
    each.samples(shapes)
for each in (first_maximum, no_maximum_at_all, nan_dropped, one_warp):
    each.samples(rows)
for each in (
    shared_buffer,
    kept_by_address,
    kept_by_shape,
    kept_by_first_values,
    right_at_first,
    same_output,
    joined_by_luck,
    half_elsewhere,
    small_alone,
    near_zero_alone,
    zeros_left_out,
    one_length,
    first_maximum,
    no_maximum_at_all,
    nan_dropped,
    one_warp,
    cleared_once,
):
    each.kernel_file("cuda.cu", SINGLES)
last_remains.kernel_file(
    "cuda.cu", ow.Domain(dtypes=(torch.float32,), layout="contiguous", types={"index": (torch.int64,)})
)
