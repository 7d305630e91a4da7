"""The third power."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow


# Inductor fuses it with its neighbours, which no kernel of ours can.
@ow.op(compile="inline", vmap="leading")
def cube(x: Tensor) -> Tensor:
    """x³, elementwise; its derivatives are 3x² and 6x.

    Args:
        x: `[...]`

    Equivalent to: `x * x * x`

    >>> import torch, opwright as ow
    >>> ow.cube(torch.tensor([1.0, 2.0, 3.0]))
    tensor([ 1.,  8., 27.])
    """
    return x * x * x


@cube.gradient
def _(grad: Tensor, x: Tensor) -> Tensor:
    return 3 * grad * (x * x).conj()


@cube.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3)
    yield make(4, 5).t()
    yield make()
    yield make(0, 2)


@cube.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    yield TypeError, "cube: x must be a Tensor, got list of float", [1.0]


@cube.cost
def _(x: Tensor) -> ow.Cost:
    return ow.Cost(bytes=2 * x.nbytes, flops=2 * x.numel())


@cube.backward.cost
def _(grad: Tensor, x: Tensor, wanted: Any) -> ow.Cost:
    return ow.Cost(bytes=grad.nbytes + 2 * x.nbytes, flops=3 * x.numel())


cube.rival("torch.pow", lambda x: torch.pow(x, 3))


DOMAIN = ow.Domain(dtypes=ow.FLOATING)
cube.kernel_files("cpu.cpp", "cuda.cu", domain=DOMAIN, backward=DOMAIN)

cube_ = ow.in_place(cube)
