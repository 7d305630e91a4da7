"""One step of LLTM, a recurrent cell without a forget gate."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import elu, linear

import opwright as ow


class State(NamedTuple):
    h: Tensor
    c: Tensor


# Autocast is to do what it does to the product inside, and no more.
@ow.op(autocast=("x", "weight", "bias", "h"))
def lltm_cell(x: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor, c: Tensor) -> State:
    """i, o, g = [h, x] Wᵀ + b; c' = c + elu(g)·sigmoid(i); h' = tanh(c')·sigmoid(o).

    The product is taken in the dtype of x, to which h is rounded. c may be float32 beside half or bfloat16, and then
    what is made of it is float32 too: a sum of many steps loses nothing.

    Args:
        x: `[batch, inputs]`
        weight: `[3·hidden, hidden + inputs]`: columns for h, then for x; rows for input gate, output gate, candidate
        bias: `[3·hidden]`, or None
        h: `[batch, hidden]`, the output of the step before
        c: `[batch, hidden]`, the cell state

    Equivalent to:
        i, o, g = linear(cat((h, x), 1), weight, bias).chunk(3, 1)
        c = c + elu(g) * sigmoid(i)
        h = tanh(c) * sigmoid(o)

    >>> import torch, opwright as ow
    >>> x, h = torch.ones(1, 3), torch.zeros(1, 2)
    >>> h, c = ow.lltm_cell(x, torch.full((6, 5), 0.1), None, h, h)
    >>> c
    tensor([[0.1723, 0.1723]])
    """
    h, c, _ = _cell(x, weight, bias, h, c)
    return State(h, c)


@lltm_cell.saving("gates")
def _(x: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor, c: Tensor) -> Any:
    return _cell(x, weight, bias, h, c)


def _cell(x: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ow.require(x.is_floating_point(), "x must be a floating-point tensor, got {x.dtype}", NotImplementedError)
    ow.require(
        weight.dim() == 2 and weight.shape[0] % 3 == 0 and weight.shape[0] // 3 <= weight.shape[1],
        "weight must have shape [3·hidden, hidden + inputs], got {weight.shape}",
    )
    hidden = weight.shape[0] // 3
    inputs = weight.shape[1] - hidden
    ow.require(
        x.dim() == 2 and x.shape[1] == inputs, "x must have shape [batch, {inputs}] to fit weight, got {x.shape}"
    )
    batch = x.shape[0]
    ow.require(h.shape == (batch, hidden), "h must have shape ({batch}, {hidden}), got {h.shape}")
    ow.require(c.shape == (batch, hidden), "c must have shape ({batch}, {hidden}), got {c.shape}")
    ow.require(
        bias is None or bias.shape == (3 * hidden,),
        "bias must have one entry for each row of weight, got {bias.shape}",
    )
    ow.require(weight.device == x.device, "weight must be on {x.device}, as x is, got {weight.device}")
    ow.require(weight.dtype == x.dtype, "weight must be {x.dtype}, as x is, got {weight.dtype}")
    i, o, g = linear(torch.cat((h.to(x.dtype), x), 1), weight, bias).chunk(3, 1)
    i, o = torch.sigmoid(i), torch.sigmoid(o)
    c = c.contiguous() + elu(g) * i
    # g before its function: elu' of a rounded elu would have lost its digits near -1.
    return torch.tanh(c) * o, c, torch.cat((i, o, g), 1)


@lltm_cell.gradient
def _(
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    x: Tensor,
    weight: Tensor,
    h: Tensor,
    c: Tensor,
    bias: ow.Like,
    gates: Tensor,
    wanted: list[bool],
) -> Any:
    hidden = h.shape[1]
    i, o, g = gates.chunk(3, 1)
    candidate = elu(g)
    t = torch.tanh(c + candidate * i)
    grad_h = torch.zeros_like(t) if grad_h is None else grad_h
    d_c = (grad_h * o * (1 - t * t)).contiguous()
    d_c = d_c if grad_c is None else d_c + grad_c.contiguous()
    d_g = d_c * i * torch.exp(g.clamp(max=0))  # elu'
    d = torch.cat((d_c * candidate * i * (1 - i), grad_h * t * o * (1 - o), d_g), 1).to(x.dtype)
    return (
        d @ weight[:, hidden:] if wanted[0] else None,
        d.t() @ torch.cat((h.to(x.dtype), x), 1) if wanted[1] else None,
        d.sum(0) if wanted[2] else None,
        (d @ weight[:, :hidden]).to(h.dtype) if wanted[3] else None,
        d_c.to(c.dtype) if wanted[4] else None,
    )


@lltm_cell.samples
def _(make: ow.Maker) -> Iterator[Any]:
    if not make.dtype.is_floating_point:
        return  # elu knows no other numbers
    for batch, inputs, hidden in ((5, 4, 3), (1, 3, 1), (2, 3, 7), (0, 2, 3), (3, 0, 2)):
        state = make(batch, hidden), make(batch, hidden)
        yield make(batch, inputs), make(3 * hidden, hidden + inputs), make(3 * hidden), *state
    yield make(4, 2).t(), make(7, 9).t(), None, make(3, 2).t(), make(2, 6)[:, ::2]


@lltm_cell.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    x, weight, bias, h = make(5, 4), make(9, 7), make(9), make(5, 3)
    yield (
        ValueError,
        "lltm_cell: weight must have shape [3·hidden, hidden + inputs], got (8, 7)",
        (
            x,
            make(8, 7),
            bias,
            h,
            h,
        ),
    )
    yield ValueError, "lltm_cell: x must have shape [batch, 4] to fit weight, got (5, 3)", (h, weight, bias, h, h)
    yield ValueError, "lltm_cell: h must have shape (5, 3), got (4, 3)", (x, weight, bias, make(4, 3), h)
    yield ValueError, "lltm_cell: c must have shape (5, 3), got (5, 4)", (x, weight, bias, h, make(5, 4))
    yield ValueError, "lltm_cell: bias must have one entry for each row of weight", (x, weight, make(3), h, h)
    yield TypeError, "lltm_cell: weight must be a Tensor, got None", (x, None, bias, h, h)


@lltm_cell.cost
def _(x: Tensor, weight: Tensor, bias: Tensor | None, h: Tensor, c: Tensor) -> ow.Cost:
    moved = x.nbytes + weight.nbytes + (0 if bias is None else bias.nbytes) + 2 * (h.nbytes + c.nbytes)
    return ow.Cost(bytes=moved, flops=2 * x.shape[0] * weight.numel())


@lltm_cell.backward.cost
def _(x: Tensor, weight: Tensor, h: Tensor, c: Tensor, gates: Tensor, **rest: Any) -> ow.Cost:
    moved = 2 * (x.nbytes + weight.nbytes + h.nbytes + c.nbytes) + gates.nbytes
    return ow.Cost(bytes=moved, flops=4 * x.shape[0] * weight.numel())


@lltm_cell.bench("cell 64x1024->128")
def _(make: ow.Maker) -> Any:
    return _drawn(make, 64, 1024, 128)


@lltm_cell.bench("cell 16x32->64")
def _(make: ow.Maker) -> Any:
    return _drawn(make, 16, 32, 64)


@lltm_cell.bench("square cell, batch 64", sizes={"cpu": (64, 128, 256, 512), "cuda": (128, 512, 1024, 2048)})
def _(make: ow.Maker, n: int) -> Any:
    return _drawn(make, 64, n, n)


def _drawn(make: ow.Maker, batch: int, inputs: int, hidden: int) -> Any:
    bound = hidden**-0.5
    weights = (make(*shape, low=-bound, high=bound) for shape in ((3 * hidden, hidden + inputs), (3 * hidden,)))
    return make(batch, inputs), *weights, make(batch, hidden), make(batch, hidden)


def _on_tensors(x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> Any:
    from .tutorial import lltm_cell_tensors

    assert bias is not None  # the tutorial's has one always
    return lltm_cell_tensors(x, weight, bias, h, c)


lltm_cell.variant("C++ on tensors", _on_tensors)

SIZES = "x[b, i] h[b, k] c[b, k] weight[3*k, k+i] bias[3*k]"
DOMAIN = ow.Domain(dtypes=ow.FLOATING, wide=("h", "c"), sizes=SIZES)
GRADIENT_DOMAIN = ow.Domain(
    dtypes=ow.FLOATING, wide=("h", "c", "grad_h", "grad_c"), sizes=SIZES + " grad_h[b, k] grad_c[b, k] gates[b, 3*k]"
)
lltm_cell.kernel_files("cpu.cpp", "cuda.cu", domain=DOMAIN, backward=GRADIENT_DOMAIN)
lltm_cell.shard("-> h[b, k] c[b, k] gates[b, 3*k]", over="b")
