"""The affine map."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow


# Inductor fuses it with its neighbours, which no kernel of ours can.
@ow.op(compile="inline", vmap=("x",))
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b over the last dimension of x.

    A gradient is computed only where it is wanted.

    Args:
        x: `[..., k]`
        weight: `[n, k]`
        bias: `[n]`, optional

    Equivalent to: `torch.nn.functional.linear(x, weight, bias)`

    >>> import torch, opwright as ow
    >>> ow.linear(torch.tensor([1.0, 2.0]), torch.tensor([[3.0, 4.0]]), torch.tensor([0.5]))
    tensor([11.5000])
    """
    ow.require(weight.dim() == 2, "weight must have shape [n, k], got {weight.shape}")
    ow.require(
        x.dim() > 0 and x.size(-1) == weight.shape[1],
        "x must end in the {weight.shape[1]} columns of weight, got {x.shape}",
    )
    ow.require(
        bias is None or (bias.dim() == 1 and bias.shape[0] == weight.shape[0]),
        "bias must have one entry for each of the {weight.shape[0]} rows of weight, got {bias.shape}",
    )
    # PyTorch's own product with a matrix of no memory returns whatever it finds.
    ow.require(weight.device == x.device, "weight must be on {x.device}, as x is, got {weight.device}")
    return torch.nn.functional.linear(x, weight, bias)


@linear.gradient(needs={"x": ["weight"], "weight": ["x"], "bias": []})
def _(grad: Tensor, x: Tensor, weight: Tensor, bias: ow.Like, wanted: list[bool]) -> Any:
    count = math.prod(grad.shape[:-1])  # -1 would not do where a side is empty
    rows = grad.reshape(count, weight.shape[0])
    return (
        grad @ weight.conj() if wanted[0] else None,
        rows.t() @ x.reshape(count, weight.shape[1]).conj() if wanted[1] else None,
        rows.sum(0) if wanted[2] else None,
    )


@linear.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5, 3), make(4, 3), make(4)
    yield make(5, 3), make(4, 3)
    yield make(2, 5, 3), make(4, 3), make(4)
    yield make(3), make(4, 3), make(4)
    yield make(3, 5).t(), make(3, 4).t(), make(4)
    yield make(0, 3), make(4, 3), make(4)
    yield make(5, 0), make(4, 0), make(4)
    yield make(5, 3), make(0, 3), make(0)


@linear.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    yield ValueError, "linear: x must end in the 3 columns of weight, got (5, 2)", (make(5, 2), make(4, 3))
    yield ValueError, "linear: weight must have shape [n, k], got (3,)", (make(5, 3), make(3))
    yield ValueError, "linear: bias must have one entry", (make(5, 3), make(4, 3), make(3))
    yield TypeError, "linear: weight must be a Tensor, got None", (make(5, 3), None)


@linear.cost
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> ow.Cost:
    rows = x.numel() // max(x.shape[-1], 1)
    moved = x.nbytes + weight.nbytes + (0 if bias is None else bias.nbytes) + rows * weight.shape[0] * x.itemsize
    return ow.Cost(bytes=moved, flops=2 * rows * weight.numel())


@linear.backward.cost
def _(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, wanted: Any) -> ow.Cost:
    rows = x.numel() // max(x.shape[-1], 1)
    moved = grad.nbytes + 2 * x.nbytes + 2 * weight.nbytes + (0 if bias is None else bias.nbytes)
    products = 2 if wanted is None else wanted[0] + wanted[1]
    return ow.Cost(bytes=moved, flops=2 * products * rows * weight.numel())


SIZES = {"cpu": (16, 64, 256, 512, 1024), "cuda": (64, 256, 1024, 4096, 8192)}


@linear.bench("square", sizes=SIZES, at={"cpu": 512, "cuda": 4096})
def _(make: ow.Maker, n: int) -> Any:
    return make(n, n), make(n, n), make(n)


@linear.bench("one row", sizes={"cpu": (256, 1024), "cuda": (1024, 8192)})
def _(make: ow.Maker, n: int) -> Any:
    return make(1, n), make(n, n), make(n)


linear.rival("addmm", lambda x, weight, bias: torch.addmm(bias, x, weight.t()))


DOMAIN = ow.Domain(dtypes=ow.FLOATING, sizes="x[..., k] weight[n, k] bias[n]")
GRADIENT_DOMAIN = ow.Domain(dtypes=ow.FLOATING, sizes="grad[..., n] x[..., k] weight[n, k]")
# cuda.cpp is no CUDA code: it calls PyTorch's matrix products, as cpu.cpp does.
linear.kernel_files("cpu.cpp", "cuda.cpp", domain=DOMAIN, backward=GRADIENT_DOMAIN)
linear.shard("-> [..., n]", sums="k", once="bias")
