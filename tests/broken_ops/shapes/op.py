"""Right in the sizes, list lengths and options that samples are likely to have."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

FLOATS = (torch.float32, torch.float64)
DENSE = ow.Domain(dtypes=FLOATS, layout="contiguous")
ROWS = ow.Domain(dtypes=FLOATS, layout="contiguous", ranks={"x": 2})


@ow.op(namespace="broken")
def long_rows(x: Tensor) -> Tensor:
    """x + 1 by rows; of a row of more than 6000 elements the last block is left out."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x + 1


@ow.op(namespace="broken")
def one_length(x: Tensor) -> Tensor:
    """x + 1 by rows; rows of 768 have a loop of their own, which is wrong."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x + 1


@ow.op(namespace="broken")
def square_unchanged(x: Tensor) -> Tensor:
    """xᵀ; a square matrix comes back as it was."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.t().clone(memory_format=torch.contiguous_format)


@ow.op(namespace="broken")
def four_million(x: Tensor) -> Tensor:
    """x + 1; beyond 2²² elements nothing is added."""
    return x + 1


@ow.op(namespace="broken")
def powers_of_two(x: Tensor) -> Tensor:
    """Each row the other way round; rows of a large power of two by their bits, which are not reversed."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.flip(-1)


@ow.op(namespace="broken")
def eight_tensors(xs: list[Tensor]) -> Tensor:
    """The sum of a list; of eight tensors at most."""
    ow.require(len(xs) > 0 and all(x.shape == xs[0].shape and x.dtype == xs[0].dtype for x in xs), "xs must be alike")
    return torch.stack(xs).sum(0)


@ow.op(namespace="broken")
def flag_forgotten(x: Tensor, *, reverse: bool = False) -> Tensor:
    """The running sum; the flag that asks for it from the end is not looked at."""
    ow.require(x.dim() == 1, "x must have one dimension, got {x.shape}")
    return x.flip(0).cumsum(0).flip(0) if reverse else x.cumsum(0)


@ow.op(namespace="broken")
def zero_kept(x: Tensor, *, alpha: float = 0.5) -> Tensor:
    """x where it is positive, alpha x elsewhere; an alpha of 0 is taken for none given."""
    return torch.where(x > 0, x, alpha * x)


@ow.op(namespace="broken")
def sign_lost(x: Tensor, *, power: int = 2) -> Tensor:
    """x to an integer power; a negative one is taken for its opposite."""
    ow.require(-8 <= power <= 8, "power must lie between -8 and 8, got {power}")
    return x**power


_each: ow.Op[..., Any]
for _each in (long_rows, one_length, square_unchanged, powers_of_two):

    @_each.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(3, 5)
        yield make(2, 33)

    _each.kernel_file("cpu.cpp", ROWS)


@four_million.samples
@zero_kept.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9)
    yield make(4, 5)


@sign_lost.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9, low=0.5, high=2.0)
    yield make(4, 5, low=0.5, high=2.0), {"power": 3}


@eight_tensors.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield [make(4), make(4), make(4)]


@flag_forgotten.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9)


for _each in (four_million, zero_kept, sign_lost, eight_tensors, flag_forgotten):
    _each.kernel_file("cpu.cpp", DENSE)
