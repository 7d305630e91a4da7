"""What models do to rows: softmax, norms, losses, gates, rotations. The kernels compute each in a way of their own."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import opwright as ow

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ROWS = ow.Domain(dtypes=FLOATS, layout="contiguous", ranks={"x": 2})


def matrix(x: Tensor) -> None:
    ow.require(x.is_floating_point() and x.dim() == 2, "x must be a matrix of floats, got {x.dtype} {x.shape}")


def rows(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 5)
    yield make(2, 33)


@ow.op(namespace="awkward")
def soft(x: Tensor) -> Tensor:
    """Softmax of each row; the kernel finds maximum and sum in one pass."""
    matrix(x)
    return torch.softmax(x, -1)


@ow.op(namespace="awkward")
def log_soft(x: Tensor) -> Tensor:
    """The logarithm of softmax."""
    matrix(x)
    return torch.log_softmax(x, -1)


@ow.op(namespace="awkward")
def log_total(x: Tensor) -> Tensor:
    """log Σ exp of each row."""
    matrix(x)
    ow.require(x.shape[1] > 0, "x must have rows that are not empty, got {x.shape}")
    return torch.logsumexp(x, -1)


@ow.op(namespace="awkward")
def rms(x: Tensor, weight: Tensor, *, eps: float = 1e-6) -> Tensor:
    """Each row divided by its root mean square, times a weight."""
    matrix(x)
    ow.require(weight.shape == x.shape[1:] and weight.dtype == x.dtype, "weight must fit x, got {weight.shape}")
    wide = x.double() if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


@ow.op(namespace="awkward")
def layer(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5) -> Tensor:
    """Layer normalisation of each row."""
    matrix(x)
    ow.require(eps > 0, "eps must be positive, got {eps}")
    for t in (weight, bias):
        ow.require(t is None or (t.shape == x.shape[1:] and t.dtype == x.dtype), "weight and bias must fit x")
    return F.layer_norm(x, x.shape[1:], weight, bias, eps)


@ow.op(namespace="awkward")
def surprise(x: Tensor, target: Tensor) -> Tensor:
    """The cross entropy of each row, 0 where the target is -100."""
    matrix(x)
    ow.require(target.shape == x.shape[:1] and target.dtype == torch.int64, "target must be int64 and fit x")
    return F.cross_entropy(x, target, reduction="none")


@ow.op(namespace="awkward")
def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Pairs of neighbours turned by angles, as rotary embeddings are."""
    matrix(x)
    ow.require(angle.dim() == 2 and (angle.shape[0], 2 * angle.shape[1]) == tuple(x.shape), "angle must fit x")
    a, b = x[:, ::2], x[:, 1::2]
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(1)


@ow.op(namespace="awkward")
def gate(x: Tensor) -> Tensor:
    """silu of the first half of each row, times the second."""
    matrix(x)
    ow.require(x.shape[1] % 2 == 0, "x must have rows of even length, got {x.shape}")
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


@ow.op(namespace="awkward")
def bell(x: Tensor) -> Tensor:
    """gelu, by the error function."""
    ow.require(x.is_floating_point(), "x must be floating-point, got {x.dtype}")
    return F.gelu(x)


@ow.op(namespace="awkward")
def decay(x: Tensor, *, keep: float = 0.5) -> Tensor:
    """y[t] = keep y[t-1] + x[t] along each row."""
    matrix(x)
    ow.require(0 <= keep <= 1, "keep must lie between 0 and 1, got {keep}")
    state, out = torch.zeros_like(x[:, 0] if x.shape[1] else x.new_zeros(x.shape[0])), []
    for t in range(x.shape[1]):
        state = keep * state + x[:, t]
        out.append(state)
    return torch.stack(out, 1) if out else torch.zeros_like(x)


@ow.op(namespace="awkward")
def top(x: Tensor) -> Tensor:
    """The largest integer of each row."""
    ow.require(x.dim() == 2 and x.shape[1] > 0 and not x.is_floating_point(), "x must be a matrix of integers")
    return x.amax(-1)


_each: ow.Op[..., Any]
for _each in (soft, log_soft, log_total):
    _each.samples(rows)


@rms.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 5), make(5)
    yield make(2, 40), make(40), {"eps": 1e-3}


@layer.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 6)
    yield make(3, 6), make(6), make(6)
    yield make(3, 6), None, make(6)


@surprise.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 6), torch.tensor([0, 5, -100, 2], device=make.device)
    yield make(3, 40), make(3, dtype=torch.int64, low=0, high=40)


@rotate.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 8), make(3, 4, low=-7.0, high=7.0)


@gate.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 8)
    yield make(2, 2)


@bell.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(17)
    yield make(3, 4, low=-9.0, high=9.0)


@decay.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 7)
    yield make(2, 30), {"keep": 0.9}


@top.samples
def _(make: ow.Maker) -> Iterator[Any]:
    dtype = torch.int64 if make.dtype.is_floating_point or make.dtype.is_complex else make.dtype
    yield make(3, 5, dtype=dtype, low=-50, high=50)
    yield make(2, 40, dtype=dtype, low=-50, high=50)


for _each in (soft, log_soft, log_total, layer, gate, decay):
    _each.kernel_file("cpu.cpp", ROWS)
rms.kernel_file("cpu.cpp", ow.Domain(dtypes=FLOATS, layout="contiguous", sizes="x[n, k] weight[k]"))
surprise.kernel_file(
    "cpu.cpp",
    ow.Domain(dtypes=FLOATS, layout="contiguous", types={"target": (torch.int64,)}, sizes="x[n, k] target[n]"),
)
rotate.kernel_file(
    "cpu.cpp", ow.Domain(dtypes=(torch.float32, torch.float64), layout="contiguous", ranks={"x": 2, "angle": 2})
)
bell.kernel_file("cpu.cpp", ow.Domain(dtypes=FLOATS))
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8)
top.kernel_file("cpu.cpp", ow.Domain(dtypes=WHOLE, layout="contiguous", ranks={"x": 2}))
