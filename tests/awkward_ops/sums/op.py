"""Sums that are long, that cancel, or that divide by little. The kernels add up otherwise than PyTorch does."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

from ..copies import copied

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ROWS = ow.Domain(dtypes=FLOATS, layout="contiguous", ranks={"x": 2})


def matrix(x: Tensor) -> None:
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")


def rows(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 5)
    yield make(2, 3000)
    yield make(2, 3000, low=0.0, high=1.0)
    yield torch.cat([part := make(2, 500), -part, make(2, 3, low=-1e-3, high=1e-3)], 1)
    yield make(3, 0)
    yield make(0, 3)


@ow.op(namespace="awkward")
def long_sum(x: Tensor) -> Tensor:
    """The sum of each row; the kernel adds from left to right."""
    matrix(x)
    return x.sum(-1)


@ow.op(namespace="awkward")
def running_sum(x: Tensor) -> Tensor:
    """The running sum of each row; the kernel adds in double."""
    matrix(x)
    return x.cumsum(-1)


@ow.op(namespace="awkward")
def mean_square(x: Tensor) -> Tensor:
    """The mean of each row's squares."""
    matrix(x)
    return (x * x).mean(-1)


@ow.op(namespace="awkward")
def variance(x: Tensor) -> Tensor:
    """The variance of each row; the kernel finds it in one pass, as Welford did."""
    matrix(x)
    return x.var(-1, correction=0)


@ow.op(namespace="awkward")
def normalise(x: Tensor, *, eps: float = 1e-5) -> Tensor:
    """Each row less its mean, divided by its deviation."""
    matrix(x)
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)


@ow.op(namespace="awkward")
def product(x: Tensor, y: Tensor) -> Tensor:
    """x yᵀ as a sum of products, which the kernel adds in double."""
    ow.require(
        x.dim() == 2 and y.dim() == 2 and x.shape[1] == y.shape[1], "x and y must be [n, k] and [m, k], got {x.shape}"
    )
    return (x.unsqueeze(1) * y).sum(-1)


@ow.op(namespace="awkward")
def length(x: Tensor) -> Tensor:
    """The Euclidean length of each row, also of rows of zeros, where it has no derivative."""
    matrix(x)
    found: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return found


@ow.op(namespace="awkward")
def difference(x: Tensor, y: Tensor) -> Tensor:
    """x² - y², which cancels where they are close."""
    ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")
    return x * x - y * y


_each: ow.Op[..., Any]
for _each in (long_sum, running_sum, mean_square):
    _each.samples(rows)


@variance.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 7)
    yield make(2, 300, low=100.0, high=100.5)
    yield make(3, 1)
    yield make(2, 9) * 0 + 3


@normalise.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 7)
    yield make(3, 40, low=5.0, high=5.01)
    yield make(2, 9) * 0 + 3
    yield make(3, 7) * 1e-4, {"eps": 1e-12}


@product.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 5), make(4, 5)
    yield make(2, 900), make(3, 900)
    yield make(3, 0), make(2, 0)


@length.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 5)
    yield make(3, 5) * 0
    yield make(2, 700) * 1e-3


@difference.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(7), make(7)
    yield (x := make(7)), x * 1.01


for _each in (long_sum, running_sum, variance, normalise, length):
    _each.kernel_file("cpu.cpp", ROWS)
product.kernel_file("cpu.cpp", ow.Domain(dtypes=FLOATS, layout="contiguous", sizes="x[n, k] y[m, k]"))


@mean_square.kernel("cpu", ROWS)
def _(x: Tensor) -> Tensor:
    return (torch.einsum("nk,nk->n", x.double(), x.double()) / x.shape[-1]).to(x.dtype)


difference.kernel("cpu", ow.Domain(dtypes=FLOATS))(copied(difference.reference))
