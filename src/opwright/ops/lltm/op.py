"""LLTM over a whole sequence."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

import opwright as ow

from .loop import Steps


class Sequence(NamedTuple):
    output: Tensor
    h_n: Tensor
    c_n: Tensor
    cells: Tensor | None


# Autocast is to do what it does to the products inside, and no more.
@ow.op(autocast=("x", "weight_ih", "weight_hh", "bias_ih", "bias_hh", "h_0"), nondifferentiable="lengths")
def lltm(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    h_0: Tensor | None = None,
    c_0: Tensor | None = None,
    *,
    lengths: Tensor | None = None,
    reverse: bool = False,
    all_cells: bool = False,
    recompute: bool = False,
) -> Sequence:
    """One layer of LLTM, in one direction, over all steps of a sequence.

    At each step i, o, g = x Wihᵀ + bih + h Whhᵀ + bhh; c ← c + elu(g)·sigmoid(i); h ← tanh(c)·sigmoid(o). Half and
    bfloat16 compute this and keep c in float32 between the steps. `ow.nn.LLTM` makes layers and directions of it.

    Args:
        x: `[steps, batch, inputs]`
        weight_ih: `[3·hidden, inputs]`: rows for input gate, output gate, candidate
        weight_hh: `[3·hidden, hidden]`
        bias_ih: `[3·hidden]`, optional
        bias_hh: `[3·hidden]`, optional
        h_0: `[batch, hidden]`, what h begins with; zeros by default
        c_0: `[batch, hidden]`, what c begins with; zeros by default. Float32 beside half or bfloat16, c_n and cells are
            float32 too
        lengths: `[batch]`, int64: how many steps each sequence has; fewer than none count as none, more than all as
            all. Beyond them output and cells are zero, the state stands still, and x is not read
        reverse: go from the last step to the first
        all_cells: return the cell states of all steps
        recompute: compute the gates again for the gradient rather than keep them: a fourth of the memory between
            forward and backward, for one product more

    Equivalent to:
        for step in x:
            i, o, g = (linear(step, weight_ih, bias_ih) + linear(h, weight_hh, bias_hh)).chunk(3, 1)
            c = c + elu(g) * sigmoid(i)
            h = tanh(c) * sigmoid(o)

    Returns: `output`, h of all steps; `h_n` and `c_n`, the state after the last; `cells`, c of all steps, or None

    >>> import torch, opwright as ow
    >>> x, weight_ih, weight_hh = torch.ones(4, 1, 2), torch.full((3, 2), 0.5), torch.full((3, 1), 0.5)
    >>> ow.lltm(x, weight_ih, weight_hh).output.flatten()
    tensor([0.4560, 0.7216, 0.7896, 0.8007])
    """
    out = Steps(x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0, lengths, reverse).forward()
    return Sequence(*out[:3], out[3] if all_cells else None)


@lltm.saving("gates", "states")
def _(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    h_0: Tensor | None,
    c_0: Tensor | None,
    lengths: Tensor | None,
    reverse: bool,
    all_cells: bool,
    recompute: bool,
) -> Any:
    run = Steps(x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0, lengths, reverse)
    output, h_n, c_n, cells, gates = run.forward()
    dtype = output.dtype
    kept = gates[..., :0] if recompute else gates
    return output, h_n, c_n, cells if all_cells else None, kept.to(dtype, copy=True), cells.to(dtype, copy=True)


@lltm.gradient
def _(
    grad_output: Tensor | None,
    grad_h_n: Tensor | None,
    grad_c_n: Tensor | None,
    grad_cells: Tensor | None,
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    h_0: Tensor | None,
    c_0: Tensor | None,
    output: Tensor,
    gates: Tensor,
    states: Tensor,
    lengths: Tensor | None,
    reverse: bool,
    recompute: bool,
    wanted: list[bool],
) -> Any:
    run = Steps(x, weight_ih, weight_hh, bias_ih, bias_hh, h_0, c_0, lengths, reverse)
    d, h, d_h, d_c = run.backward(
        grad_output, grad_h_n, grad_c_n, grad_cells, output, None if recompute else gates, states
    )
    steps, rows = len(d), len(d) * run.batch
    flat = d.reshape(rows, d.shape[2])
    d_x = (flat @ weight_ih).reshape(steps, run.batch, x.shape[2]) if wanted[0] else None
    d_bias = flat.sum(0) if wanted[3] or wanted[4] else None
    return (
        d_x,
        flat.t() @ run.inputs.reshape(rows, x.shape[2]) if wanted[1] else None,
        flat.t() @ h.reshape(rows, run.hidden) if wanted[2] else None,
        d_bias if wanted[3] else None,
        d_bias.clone() if d_bias is not None and wanted[4] else None,
        d_h.to(h_0.dtype) if h_0 is not None and wanted[5] else None,
        d_c.to(c_0.dtype) if c_0 is not None and wanted[6] else None,
    )


@lltm.fake
def _(**given: Any) -> Sequence:
    return _shapes(**given)


def _shapes(all_cells: bool, recompute: bool = False, **given: Any) -> Sequence:
    """What the results look like. The loop would tell as well, and take as long to trace as it has steps."""
    run = Steps(**given)
    x, c_0, steps, batch, hidden = run.x, run.c_0, run.x.shape[0], run.batch, run.hidden
    dtype = linear(x[:1], run.weight_ih, run.bias_ih).dtype
    kept = dtype if c_0 is None else c_0.dtype
    return Sequence(
        x.new_empty(steps, batch, hidden, dtype=dtype),
        x.new_empty(batch, hidden, dtype=dtype),
        x.new_empty(batch, hidden, dtype=kept),
        x.new_empty(steps, batch, hidden, dtype=kept) if all_cells else None,
    )


assert lltm.saving_form is not None


@lltm.saving_form.fake
def _(recompute: bool, **given: Any) -> Any:
    shapes = _shapes(**given)
    steps, batch, hidden = shapes.output.shape
    kept = ((steps, batch, 0 if recompute else 3 * hidden), (steps, batch, hidden))
    return *shapes, *(shapes.output.new_empty(shape) for shape in kept)


@lltm.backward.fake
def _(wanted: list[bool] | None, **given: Any) -> Any:
    inputs = [given[p.name] for p in lltm.signature.differentiable_inputs]
    wants = wanted or [True] * len(inputs)
    return tuple(None if t is None or not want else t.new_empty(t.shape) for t, want in zip(inputs, wants, strict=True))


@lltm.samples
def _(make: ow.Maker) -> Iterator[Any]:
    if not make.dtype.is_floating_point:
        return  # elu knows no other numbers

    def weights(inputs: int, hidden: int) -> Any:
        shapes = ((3 * hidden, inputs), (3 * hidden, hidden), (3 * hidden,), (3 * hidden,))
        return [make(*shape, low=-0.7, high=0.7) for shape in shapes]

    def lengths(*values: int) -> Tensor:
        return torch.tensor(values, device=make.device)

    yield make(3, 2, 4), *weights(4, 3), make(2, 3), make(2, 3), {"all_cells": True}
    yield make(2, 3, 2), *weights(2, 1), {"reverse": True, "lengths": lengths(2, 0, 1), "recompute": True}
    yield make(2, 4, 2), *weights(2, 7)[:2], {"recompute": True}
    yield make(4, 3, 2), *weights(2, 2), make(3, 2), make(3, 2), {"lengths": lengths(1, 4, 2)}
    yield make(1, 1, 2), *weights(2, 3), None, make(1, 3)
    yield make(0, 2, 2), *weights(2, 3), make(2, 3), make(2, 3)
    yield make(2, 0, 2), *weights(2, 3)
    yield make(2, 2, 3).transpose(0, 1), *weights(3, 2), make(2, 4)[:, ::2], None, {"reverse": True}


@lltm.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    x, ih, hh, bias, state = make(3, 2, 4), make(9, 4), make(9, 3), make(9), make(2, 3)
    yield ValueError, "lltm: weight_hh must have shape [3·hidden, hidden], got (8, 3)", (x, ih, make(8, 3))
    yield ValueError, "lltm: weight_ih must have the 9 rows of weight_hh, got (6, 4)", (x, make(6, 4), hh)
    yield (
        ValueError,
        "lltm: x must have 3 dimensions, the last of size 4 to fit weight_ih, got (3, 4)",
        (x[:, 0], ih, hh),
    )
    yield ValueError, "lltm: bias_hh must have shape (9,), got (3,)", (x, ih, hh, bias, make(3))
    yield ValueError, "lltm: h_0 must have shape (2, 3), got (3, 3)", (x, ih, hh, bias, bias, make(3, 3), state)
    yield (
        ValueError,
        "lltm: lengths must have shape (2,) and dtype int64, got (2,) and",
        (x, ih, hh, {"lengths": make(2)}),
    )
    other = torch.float64 if make.dtype != torch.float64 else torch.float32
    for name, value in {"weight_ih": make(9, 4, dtype=other), "h_0": make(2, 3, dtype=other)}.items():
        given = {"weight_ih": ih, "weight_hh": hh, name: value}
        yield ValueError, f"lltm: {name} must be {str(make.dtype)[6:]}, as x is, got {str(other)[6:]}", (x, given)
    elsewhere = torch.empty(9, 3, dtype=make.dtype, device="meta")
    yield ValueError, f"lltm: weight_hh must be on {x.device}, as x is, got meta", (x, ih, elsewhere)
    yield TypeError, "lltm: weight_hh must be a Tensor, got None", (x, ih, None)


@lltm.cost
def _(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, **rest: Any) -> ow.Cost:
    rows = x.shape[0] * x.shape[1]
    moved = x.nbytes + weight_ih.nbytes + weight_hh.nbytes + rows * weight_hh.shape[1] * x.itemsize
    return ow.Cost(bytes=moved, flops=2 * rows * (weight_ih.numel() + weight_hh.numel()))


@lltm.backward.cost
def _(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, **rest: Any) -> ow.Cost:
    rows = x.shape[0] * x.shape[1]
    moved = 2 * (x.nbytes + weight_ih.nbytes + weight_hh.nbytes) + 4 * rows * weight_hh.shape[1] * x.itemsize
    return ow.Cost(bytes=moved, flops=4 * rows * (weight_ih.numel() + weight_hh.numel()))


@lltm.bench("T128 B16", sizes={"cpu": (32, 64, 128, 256), "cuda": (128, 256, 512, 1024)}, compiled=False)
def _(make: ow.Maker, n: int) -> Any:
    return _drawn(make, 128, 16, n)


@lltm.bench("batch 32", sizes={"cpu": (128, 512), "cuda": (512, 1024)}, compiled=False)
def _(make: ow.Maker, n: int) -> Any:
    return _drawn(make, 128, 32, n)


def _drawn(make: ow.Maker, steps: int, batch: int, size: int) -> Any:
    bound = size**-0.5
    shapes = ((3 * size, size), (3 * size, size), (3 * size,), (3 * size,))
    return make(steps, batch, size), *(make(*shape, low=-bound, high=bound) for shape in shapes)


def _lstm(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor, **rest: Any) -> Any:
    """The arguments of an LSTM of these sizes: four gates for three."""
    weights = [torch.cat((w, w[: w.shape[0] // 3])).contiguous() for w in (weight_ih, weight_hh, bias_ih, bias_hh)]
    return x, *weights


def _run_lstm(x: Tensor, *weights: Tensor) -> Tensor:
    state = x.new_zeros(1, x.shape[1], weights[1].shape[1])
    output: Tensor = torch.lstm(x, (state, state), list(weights), True, 1, 0.0, True, False, False)[0]
    return output


lltm.rival("torch.lstm", _run_lstm, prepare=_lstm, same=False)

SIZES = "x[t, b, i] weight_ih[3*h, i] weight_hh[3*h, h] bias_ih[3*h] bias_hh[3*h] h_0[b, h] c_0[b, h] lengths[b]"
# Products of numbers in vectors are to be added in one instruction.
BUILD = ow.Options(sources=("float.cpp", "double.cpp"), cxxflags=("-ffp-contract=fast",))
DOMAIN = ow.Domain(dtypes=ow.FLOATING, wide=("c_0",), types={"lengths": (torch.int64,)}, sizes=SIZES)
GRADIENT_SIZES = (
    SIZES + " grad_output[t, b, h] grad_h_n[b, h] grad_c_n[b, h] grad_cells[t, b, h]"
    " output[t, b, h] gates[t, b, _] states[t, b, h]"
)
GRADIENT_DOMAIN = ow.Domain(
    dtypes=ow.FLOATING, wide=("c_0", "grad_c_n", "grad_cells"), types={"lengths": (torch.int64,)}, sizes=GRADIENT_SIZES
)
lltm.kernel_files("cpu.cpp", domain=DOMAIN, backward=GRADIENT_DOMAIN, options=BUILD)
# The persistent kernels, unrolled for their sizes, would be 10 MB for one GPU, a sixth of that compressed.
ON_GPU = ow.Options(sources=("half.cu", "bfloat16.cu", "single.cu"), nvccflags=("-compress-mode=size",))
lltm.kernel_files("cuda.cu", domain=DOMAIN, backward=GRADIENT_DOMAIN, options=ON_GPU)
lltm.shard("-> output[t, b, h] h_n[b, h] c_n[b, h] cells[t, b, h] gates[t, b, _] states[t, b, h]", over="b")
