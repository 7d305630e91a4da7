"""What models are made of, as their authors write it: kernels that read less than the reference, buffers, solvers."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

FLOATS = (torch.float32, torch.float64)


@ow.op(namespace="awkward")
def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention; the kernel reads no key that is masked."""
    ow.require(q.dim() == 3 and q.shape == k.shape == v.shape, "q, k and v must be [b, t, d]")
    ow.require(q.is_floating_point() and q.shape[2] > 0, "q must be floating-point and have channels")
    s = q @ k.transpose(1, 2) / math.sqrt(q.shape[2])
    later = torch.ones(s.shape[1:], dtype=torch.bool, device=s.device).triu(1)
    return torch.softmax(s.masked_fill(later, -math.inf), -1) @ v


@ow.op(namespace="awkward", nondifferentiable=("cos", "sin"))
def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotations of neighbouring pairs; PyTorch cannot batch the formula's flatten."""
    ow.require(x.is_floating_point() and x.dim() == 3 and cos.dim() == 2, "x must be [b, t, 2k], cos and sin [t, k]")
    ow.require(cos.shape == sin.shape == (x.shape[1], x.shape[2] // 2) and x.shape[2] % 2 == 0, "cos and sin must fit")
    ow.require(x.dtype == cos.dtype == sin.dtype, "x, cos and sin must have one dtype")
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


@rotary.gradient
def _(grad: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = grad[..., 0::2], grad[..., 1::2]
    return torch.stack((a * cos + b * sin, b * cos - a * sin), -1).flatten(-2)


@ow.op(namespace="awkward", mutates=("mean", "var"))
def running(x: Tensor, mean: Tensor, var: Tensor, *, training: bool = True) -> Tensor:
    """Batch norm, whose statistics move while training alone."""
    ow.require(x.is_floating_point() and x.dim() == 2 and x.shape[0] > 1, "x must have two rows at least")
    ow.require(mean.shape == var.shape == x.shape[1:], "mean and var must be [c]")
    if not training:
        return (x - mean) / torch.sqrt(var + 1e-5)
    m, v = x.mean(0), x.var(0, correction=0)
    mean.lerp_(m.detach(), 0.1)
    var.lerp_(v.detach() * (x.shape[0] / (x.shape[0] - 1)), 0.1)
    return (x - m) / torch.sqrt(v + 1e-5)


@ow.op(namespace="awkward")
def ridge(a: Tensor, b: Tensor, *, by: float = 1.0) -> Tensor:
    """(aᵀa + by)⁻¹ aᵀ b; with large numbers rounding errors leave nothing positive definite."""
    ow.require(a.dim() == 2 and b.dim() == 2 and a.shape[0] == b.shape[0], "a and b must be matrices of as many rows")
    ow.require(by > 0 and a.dtype == b.dtype and a.dtype in FLOATS, "by must be positive, a and b alike")
    gram = a.t() @ a + by * torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
    return torch.cholesky_solve(a.t() @ b, torch.linalg.cholesky(gram)).contiguous()


@ow.op(namespace="awkward", nondifferentiable=("codes",))
def int8_rows(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """x · (codes · scale)ᵀ; the kernel scales sums."""
    ow.require(x.dim() == 2 and codes.dim() == 2 and x.shape[1] == codes.shape[1], "x [b, k], codes [n, k]")
    ow.require(codes.dtype == torch.int8 and scale.shape == codes.shape[:1], "codes must be int8, scale [n]")
    ow.require(x.is_floating_point() and x.dtype == scale.dtype, "x and scale must have one dtype")
    return x @ (codes.to(x.dtype) * scale[:, None]).t()


@causal.kernel("cpu", ow.Domain(dtypes=FLOATS, sizes="q[b, t, d] k[b, t, d] v[b, t, d]"))
def _(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    ow.require(q.shape[2] > 0, "q must have channels")
    out, by = torch.empty(q.shape, dtype=q.dtype), 1 / math.sqrt(q.shape[2])
    for t in range(q.shape[1]):
        seen = slice(0, t + 1)
        weights = torch.softmax(q[:, t : t + 1] @ k[:, seen].transpose(1, 2) * by, -1)
        out[:, t : t + 1] = weights @ v[:, seen]
    return out


@rotary.kernel("cpu", ow.Domain(dtypes=FLOATS, sizes="x[b, t, 2*k] cos[t, k] sin[t, k]"))
def _(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype)
    torch.sub(x[..., 0::2] * cos, x[..., 1::2] * sin, out=out[..., 0::2])
    torch.add(x[..., 0::2] * sin, x[..., 1::2] * cos, out=out[..., 1::2])
    return out


@running.kernel("cpu", ow.Domain(dtypes=FLOATS, sizes="x[n, c] mean[c] var[c]"))
def _(x: Tensor, mean: Tensor, var: Tensor, *, training: bool = True) -> Tensor:
    ow.require(x.shape[0] > 1, "x must have two rows at least")
    if not training:
        return (x - mean).mul_(torch.rsqrt(var + 1e-5))
    centred = x - x.mean(0)
    squares = (centred * centred).sum(0)
    mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
    var.mul_(0.9).add_(squares / (x.shape[0] - 1), alpha=0.1)
    return centred.mul_(torch.rsqrt(squares / x.shape[0] + 1e-5))


@ridge.kernel("cpu", ow.Domain(dtypes=FLOATS, sizes="a[n, k] b[n, m]"))
def _(a: Tensor, b: Tensor, *, by: float = 1.0) -> Tensor:
    ow.require(by > 0, "by must be positive")
    gram = (a.t() @ a).double()
    gram.diagonal().add_(by)
    found: Tensor = torch.linalg.solve(gram, (a.t() @ b).double())
    return found.to(a.dtype).contiguous()


@int8_rows.kernel("cpu", ow.Domain(dtypes=FLOATS, types={"codes": (torch.int8,)}, sizes="x[b, k] codes[n, k] scale[n]"))
def _(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    return (x @ codes.to(x.dtype).t()) * scale


@causal.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(2, 5, 4), make(2, 5, 4), make(2, 5, 4)
    yield make(1, 3, 8), make(1, 3, 8), make(1, 3, 8)


@rotary.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(2, 3, 8), make(3, 4), make(3, 4)


@running.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(6, 3), make(3), make(3).abs()
    yield make(4, 5), make(5), make(5).abs(), {"training": False}


@ridge.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(6, 3), make(6, 2)
    yield make(4, 1), make(4, 3), {"by": 0.5}


@int8_rows.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 8), torch.arange(-20, 20, dtype=torch.int8, device=make.device).reshape(5, 8), make(5)
