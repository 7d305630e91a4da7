"""Functions that jump: a rounding error away from the jump there are two right answers."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

from ..copies import copied

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ANY = ow.Domain(dtypes=FLOATS)


@ow.op(namespace="awkward")
def floor(x: Tensor) -> Tensor:
    """⌊x⌋."""
    return x.floor()


@ow.op(namespace="awkward")
def round_even(x: Tensor) -> Tensor:
    """x rounded, halves to even."""
    return x.round()


@ow.op(namespace="awkward")
def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1."""
    return x.sign()


@ow.op(namespace="awkward")
def quantise(x: Tensor, *, scale: float = 0.1) -> Tensor:
    """x rounded to multiples of scale."""
    ow.require(x.layout == torch.strided, "x must be dense")  # PyTorch's round of sparse tensors fails now and then
    ow.require(scale > 0, "scale must be positive, got {scale}")
    return (x / scale).round() * scale


@ow.op(namespace="awkward")
def step_of_sum(x: Tensor) -> Tensor:
    """1 where a row's sum is positive, else 0."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return (x.sum(-1) > 0).to(x.dtype)


@ow.op(namespace="awkward")
def fraction(x: Tensor) -> Tensor:
    """x - ⌊x⌋."""
    return x - x.floor()


@ow.op(namespace="awkward")
def hinge(x: Tensor) -> Tensor:
    """max(x, 0), with a kink at 0 that samples hit."""
    return x.relu()


@ow.op(namespace="awkward")
def bucket(x: Tensor) -> Tensor:
    """Which of the intervals between -1, 0 and 1 holds x."""
    return torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype, device=x.device))


@ow.op(namespace="awkward")
def wrap(x: Tensor) -> Tensor:
    """An angle brought into [-π, π)."""
    return torch.remainder(x + torch.pi, 2 * torch.pi) - torch.pi


_each: ow.Op[..., Any]
for _each in (floor, round_even, sign, fraction, hinge, bucket, wrap, step_of_sum, quantise):
    _each.kernel("cpu", ANY)(copied(_each.reference))


@floor.samples
@round_even.samples
@sign.samples
@fraction.samples
@hinge.samples
@bucket.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9)
    yield make(4, 5, low=-9.0, high=9.0)
    yield (make(11, low=-4.0, high=4.0) * 2).round() / 2
    yield make(0)


@wrap.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9)
    yield make(9, low=-20.0, high=20.0)


@quantise.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9)
    yield make(4, 5), {"scale": 0.25}
    yield (make(9) * 10).round() / 20


@quantise.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    yield ValueError, "scale must be positive", (make(3), {"scale": 0.0})


@step_of_sum.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 5)
    yield torch.cat([part := make(3, 20), -part], 1)
