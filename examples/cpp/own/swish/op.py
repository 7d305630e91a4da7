"""An operator of one's own, for a program in C++."""

from collections.abc import Iterator
from typing import Any

import torch

import opwright as ow


@ow.op(namespace="my_ops")
def swish(x: torch.Tensor, *, beta: float = 1.0) -> torch.Tensor:
    """x · sigmoid(beta · x), elementwise."""
    return x * torch.sigmoid(beta * x)


@swish.gradient
def _(grad: torch.Tensor, x: torch.Tensor, beta: float) -> torch.Tensor:
    s = torch.sigmoid(beta * x)
    return grad * (s * (1 + beta * x * (1 - s)))


@swish.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3)
    yield make(64, 33), {"beta": 2.0}


swish.kernel_files("cpu.cpp", domain=ow.Domain(dtypes=ow.FLOATING), backward=ow.Domain(dtypes=ow.FLOATING))
