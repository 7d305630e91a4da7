"""The logistic function."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow


# Inductor fuses it with its neighbours, which no kernel of ours can.
@ow.op(compile="inline", vmap="leading")
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e⁻ˣ), elementwise.

    Integers give the default floating-point type.

    Args:
        x: `[...]`

    Equivalent to: `torch.sigmoid(x)`

    >>> import torch, opwright as ow
    >>> ow.sigmoid(torch.tensor([0.0, 2.0]))
    tensor([0.5000, 0.8808])
    """
    return torch.sigmoid(x)


@sigmoid.gradient
def _(grad: Tensor, result: Tensor) -> Tensor:
    return grad * (result * (1 - result)).conj()


@sigmoid.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3)
    yield make(2, 5, low=-30.0, high=30.0)
    yield make(4, 5).t()
    yield make()
    yield make(0)


@sigmoid.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    yield TypeError, "sigmoid: x must be a Tensor, got float 0.5", 0.5


@sigmoid.cost
def _(x: Tensor) -> ow.Cost:
    return ow.Cost(bytes=2 * x.nbytes, flops=4 * x.numel())


@sigmoid.backward.cost
def _(grad: Tensor, result: Tensor, wanted: Any) -> ow.Cost:
    return ow.Cost(bytes=2 * grad.nbytes + result.nbytes, flops=3 * result.numel())


DOMAIN = ow.Domain(dtypes=ow.FLOATING)
sigmoid.kernel_files("cpu.cpp", "cuda.cu", domain=DOMAIN, backward=DOMAIN)

sigmoid_ = ow.in_place(sigmoid)
