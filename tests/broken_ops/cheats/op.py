"""Right only for what a checker is likely to send. All of them compute x² + 1."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

DENSE = ow.Domain(dtypes=(torch.float32, torch.float64), layout="contiguous")


@ow.op(namespace="broken")
def by_address(x: Tensor) -> Tensor:
    """The result is kept by the address, the size and the first and last values of x."""
    return x * x + 1


@ow.op(namespace="broken")
def by_shape(x: Tensor) -> Tensor:
    """The result is kept by the shape and the sum of x."""
    return x * x + 1


@ow.op(namespace="broken")
def by_count(x: Tensor) -> Tensor:
    """Right in the first thousand calls."""
    return x * x + 1


@ow.op(namespace="broken")
def now_and_then(x: Tensor) -> Tensor:
    """Every 97th call is left out."""
    return x * x + 1


@ow.op(namespace="broken")
def handed_out_again(x: Tensor) -> Tensor:
    """The result lies in memory of the kernel's own, which the next call of that size overwrites."""
    return x * x + 1


@ow.op(namespace="broken")
def small_only(x: Tensor) -> Tensor:
    """Beyond 10 000 elements every second one is computed, and the others guessed."""
    return x * x + 1


@ow.op(namespace="broken")
def near_zero_only(x: Tensor) -> Tensor:
    """Right where the mean is near zero; elsewhere a tangent is taken for the parabola."""
    return x * x + 1


@ow.op(namespace="broken")
def by_its_reference(x: Tensor) -> Tensor:
    """The kernel has the reference do it."""
    return x * x + 1


@by_its_reference.kernel("cpu", DENSE)
def _(x: Tensor) -> Tensor:
    out: Tensor = by_its_reference.reference(x)
    return out


@by_its_reference.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9)


_each: ow.Op[..., Any]
for _each in (by_address, by_shape, by_count, now_and_then, handed_out_again, small_only, near_zero_only):

    @_each.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(9)
        yield make(4, 5)

    _each.kernel_file("cpu.cpp", DENSE)
