"""The first, the largest, the middle one: questions with more than one answer where elements are equal."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

import opwright as ow

from ..copies import copied

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ROWS = ow.Domain(dtypes=FLOATS, layout="contiguous", ranks={"x": 2})


class Extreme(NamedTuple):
    value: Tensor
    place: Tensor


def rows(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 5)
    yield make(4, 40).round()
    yield make(3, 6) * 0
    yield make(0, 3)


def matrix(x: Tensor) -> None:
    ow.require(x.dim() == 2 and x.shape[1] > 0, "x must have shape [n, k] with k > 0, got {x.shape}")


@ow.op(namespace="awkward", nondifferentiable=("place",))
def largest(x: Tensor) -> Extreme:
    """The largest element of each row and where it stands first."""
    matrix(x)
    return Extreme(*x.max(-1))


@ow.op(namespace="awkward")
def peak(x: Tensor) -> Tensor:
    """The largest element of each row; equal ones share the gradient."""
    matrix(x)
    return x.amax(-1)


@ow.op(namespace="awkward")
def where_largest(x: Tensor) -> Tensor:
    """Where each row is largest first."""
    matrix(x)
    return x.argmax(-1)


@ow.op(namespace="awkward", nondifferentiable=("place",))
def ranked(x: Tensor) -> Extreme:
    """Each row sorted, equals in their old order."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return Extreme(*x.sort(dim=-1, stable=True))


@ow.op(namespace="awkward")
def middle(x: Tensor) -> Tensor:
    """The lower median of each row."""
    matrix(x)
    # torch.median does not say which of equal elements it takes, and gives that one the gradient.
    return x.sort(dim=-1, stable=True).values[:, (x.shape[1] - 1) // 2].clone()


@ow.op(namespace="awkward")
def larger(x: Tensor, y: Tensor) -> Tensor:
    """max(x, y); where they are equal each gets half of the gradient."""
    ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")
    return torch.maximum(x, y)


@ow.op(namespace="awkward")
def best_three(x: Tensor) -> Tensor:
    """The three largest of each row, in order."""
    ow.require(x.dim() == 2 and x.shape[1] >= 3, "x must have shape [n, k] with k ≥ 3, got {x.shape}")
    return x.topk(3, -1).values


_each: ow.Op[..., Any]
for _each in (largest, peak, where_largest, ranked, middle, best_three):
    _each.samples(rows)


@larger.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9), make(9)
    yield make(9).round(), make(9).round()


for _each in (largest, peak, where_largest, middle, larger, best_three):
    _each.kernel("cpu", ow.Domain(dtypes=FLOATS))(copied(_each.reference))
ranked.kernel_file("cpu.cpp", ROWS)
