"""exp, log and their kind near where they end. The kernels take another way to the same values."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

from ..copies import copied

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ANY = ow.Domain(dtypes=FLOATS)
ROWS = ow.Domain(dtypes=FLOATS, layout="contiguous", ranks={"x": 2})


def logits(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 5)
    yield make(2, 300, low=-80.0, high=80.0)
    yield make(2, 7, low=-1e4, high=1e4)
    yield make(3, 1)
    yield make(0, 4)


@ow.op(namespace="awkward")
def softmax(x: Tensor) -> Tensor:
    """The softmax of each row; the kernel finds maximum and sum in one pass."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.softmax(-1)


@ow.op(namespace="awkward")
def log_sum_exp(x: Tensor) -> Tensor:
    """log Σ eˣ of each row."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.logsumexp(-1)


@ow.op(namespace="awkward")
def softplus(x: Tensor) -> Tensor:
    """log(1 + eˣ)."""
    return torch.logaddexp(x, torch.zeros_like(x))


@ow.op(namespace="awkward")
def exponential(x: Tensor) -> Tensor:
    """eˣ, up to where it overflows and down to where it vanishes."""
    return x.exp()


@ow.op(namespace="awkward")
def logarithm(x: Tensor) -> Tensor:
    """log x, near 1 and near 0."""
    return x.log()


@ow.op(namespace="awkward")
def entropy(x: Tensor) -> Tensor:
    """-x log x, which is 0 at 0."""
    found: Tensor = torch.special.entr(x)
    return found


@ow.op(namespace="awkward")
def logit(x: Tensor) -> Tensor:
    """log(x / (1 - x)), which magnifies rounding near 1."""
    return torch.logit(x)


@ow.op(namespace="awkward")
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e⁻ˣ), far out; the kernel never takes the exponential of a positive number."""
    return x.sigmoid()


@ow.op(namespace="awkward")
def growth(x: Tensor) -> Tensor:
    """(eˣ - 1) / x, which is 1 at 0."""
    return torch.where(x == 0, 1, torch.expm1(x) / torch.where(x == 0, 1, x))


@ow.op(namespace="awkward")
def reciprocal_root(x: Tensor) -> Tensor:
    """1 / √x of the very small."""
    return x.rsqrt()


@ow.op(namespace="awkward")
def angle(y: Tensor, x: Tensor) -> Tensor:
    """The angle of (x, y), which jumps across the negative x axis."""
    ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")
    return torch.atan2(y, x)


@ow.op(namespace="awkward")
def gelu(x: Tensor) -> Tensor:
    """x Φ(x)."""
    return torch.nn.functional.gelu(x)


softmax.samples(logits)
log_sum_exp.samples(logits)
softmax.kernel_file("cpu.cpp", ROWS)
log_sum_exp.kernel_file("cpu.cpp", ROWS)
_each: ow.Op[..., Any]
for _each in (softplus, exponential, logarithm, sigmoid):
    _each.kernel_file("cpu.cpp", ANY)
for _each in (entropy, logit, growth, reciprocal_root, angle, gelu):
    _each.kernel("cpu", ANY)(copied(_each.reference))


@softplus.samples
@exponential.samples
@sigmoid.samples
@growth.samples
@gelu.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(7)
    yield make(9, low=-88.0, high=88.0)
    yield make(9, low=-1e-3, high=1e-3)
    yield make(4, 3)


@logarithm.samples
@reciprocal_root.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9, low=0.5, high=2.0)
    yield make(9, low=0.99, high=1.01)
    yield make(9, low=1e-7, high=1e-4)


@entropy.samples
@logit.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9, low=0.1, high=0.9)
    yield make(9, low=0.98, high=0.99)
    yield make(9, low=1e-6, high=1e-3)


@angle.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9), make(9)
    yield make(9, low=-1e-3, high=1e-3), make(9, low=-2.0, high=-1.0)
