"""A tensor times a number."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow


# Inductor fuses it with its neighbours, which no kernel of ours can.
@ow.op(compile="inline", vmap="leading")
def scale(x: Tensor, factor: ow.Number) -> Tensor:
    """factor · x for a Python number.

    The number gets no gradient; an undefined gradient that comes in stays undefined.

    Args:
        x: `[...]`
        factor: a number

    Equivalent to: `x * factor`

    >>> import torch, opwright as ow
    >>> ow.scale(torch.tensor([1.0, 2.0]), 3)
    tensor([3., 6.])
    """
    return x * factor


@scale.gradient
def _(grad: Tensor, x: ow.Like, factor: ow.Number) -> Tensor:
    conj = factor if isinstance(factor, bool) else factor.conjugate()  # of a bool Dynamo knows none
    return ow.reduce_to(grad * conj, x)


@scale.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3), 2
    yield make(2, 3), -0.5
    yield make(4, 5).t(), 3.0
    yield make(), 2.0
    yield make(0, 2), True


@scale.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    yield TypeError, "scale: factor must be a number, got Tensor (a number takes no gradient", (make(3), make(1))
    yield TypeError, "scale: x must be a Tensor, got int 3", (3, 2)


@scale.cost
def _(x: Tensor, factor: ow.Number) -> ow.Cost:
    return ow.Cost(bytes=x.nbytes + x.numel() * torch.result_type(x, factor).itemsize, flops=x.numel())


@scale.backward.cost
def _(grad: Tensor, x: Tensor, factor: ow.Number, wanted: Any) -> ow.Cost:
    return ow.Cost(bytes=grad.nbytes + x.nbytes, flops=grad.numel())


scale.rival("torch.mul", torch.mul)


DOMAIN = ow.Domain(dtypes=ow.FLOATING)
scale.kernel_files("cpu.cpp", "cuda.cu", domain=DOMAIN, backward=DOMAIN)

scale_ = ow.in_place(scale)
