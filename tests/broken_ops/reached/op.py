"""Wrong in branches that no number of the source leads to: what they turn on is computed."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

DENSE = ow.Domain(dtypes=(torch.float32, torch.float64), layout="contiguous")


@ow.op(namespace="broken")
def on_a_sum(x: Tensor) -> Tensor:
    """Wrong where the sum of the elements, which is near zero as a rule, lies in a narrow band far from it."""
    return x * x + 1


@ow.op(namespace="broken")
def on_a_product(x: Tensor, y: Tensor) -> Tensor:
    """Wrong where the product of the first elements is large and negative, and the rows are many."""
    return x * y + 1


@ow.op(namespace="broken")
def on_a_limit(x: Tensor) -> Tensor:
    """Wrong for one length that a header of the system's names."""
    return x + 1


@ow.op(namespace="broken")
def on_an_order(x: Tensor) -> Tensor:
    """Wrong where many elements in a row rise; only for doubles."""
    return x * 2


_each: ow.Op[..., Any]
for _each in (on_a_sum, on_a_limit, on_an_order):

    @_each.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(9)
        yield make(4, 5)

    _each.kernel_file("cpu.cpp", DENSE)


@on_a_product.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 5), make(4, 5)


on_a_product.kernel_file("cpu.cpp", DENSE)
