"""Gradients of a call: through an operator, through its reference, or by the formula its author declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check.calls import collect
from opwright.kit.op import Op
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import has_gradient, tensors
from opwright.kit.truth.oracle import Results, copy

INCOMING = ("dense", "expanded", "transposed", "sliced")
SCALED = {"large": 10, "small": -18}
"""Incoming gradients that are scaled by a power of two: a loss may be, so that half-precision gradients do not vanish.
float16 has no room for the latter."""
ONES = "ones"
"""One number for all of them, a 1, as sum().backward() hands it on."""
LONE = ("to-first", "to-last")
"""A gradient comes in for the first result alone, or for the last."""
ALONE, AGAIN = ("first", "last"), "again"
"""The first tensor alone requires a gradient, or the last; the gradients are asked for a second time."""


@dataclass(frozen=True)
class Leaves:
    """A call whose differentiable tensors are leaves, and those leaves in order."""

    sample: Sample
    leaves: list[Tensor]


def leaves_of(op: Op[..., Any], sample: Sample, wanted: Callable[[int], bool] = lambda i: True) -> Leaves:
    """The call with its differentiable tensors as leaves; what is written to is a copy of one."""
    found: list[Tensor] = []
    seen = 0

    def leaf(name: str, value: Any) -> Any:
        nonlocal seen
        parameter = op.signature.names[name]
        if isinstance(value, Tensor) and parameter.has_gradient and has_gradient(value):
            seen += 1
            if not wanted(seen - 1):
                return copy(value)
            t = copy(value).requires_grad_()
            found.append(t)
            return t.clone() if parameter.mutated else t
        if isinstance(value, (list, tuple)) and tensors(value):
            return [leaf(name, v) for v in value]
        return copy(value) if isinstance(value, Tensor) else value

    names = [p.name for p in op.signature.parameters]
    args = tuple(leaf(n, v) for n, v in zip(names, sample.args, strict=False))
    return Leaves(Sample(args, {n: leaf(n, v) for n, v in sample.kwargs.items()}), found)


def incoming(results: Results, kind: str, generator: torch.Generator) -> list[Tensor | None]:
    """Gradients that come in for these results, laid out as real graphs lay them."""

    def draw(t: Tensor) -> Tensor:
        wide = torch.complex128 if t.dtype.is_complex else torch.float64
        shape = () if kind == "expanded" else t.shape
        g = torch.rand(shape, generator=generator, dtype=wide).mul(2).sub(1)
        g = g.mul(2.0 ** SCALED.get(kind, 0)).to(t.device, t.dtype)
        if kind == ONES:
            return torch.ones((), dtype=t.dtype, device=t.device).expand(t.shape)
        if kind == "expanded":
            return g.expand(t.shape)
        if kind == "transposed" and t.dim() > 1:
            return g.transpose(0, -1).contiguous().transpose(0, -1)
        if kind == "sliced" and t.dim() > 0:
            outer = torch.full((*t.shape[:-1], 2 * t.shape[-1] + 1), float("nan"), dtype=t.dtype, device=t.device)
            return outer[..., 1::2].copy_(g)
        return g

    found = [draw(t) if t is not None and has_gradient(t) else None for t in results]
    if kind in LONE:
        there = [i for i, g in enumerate(found) if g is not None][:: 1 if kind == LONE[0] else -1]
        return [g if i in there[:1] else None for i, g in enumerate(found)]
    return found


def pack(sample: Sample, grads: list[Tensor | None]) -> Sample:
    """A call and the gradients that come in, as one sample."""
    return Sample((*sample.args, list(grads)), sample.kwargs)


def through(
    op: Op[..., Any],
    function: Callable[..., Any],
    order: int,
    *,
    wanted: Callable[[int], bool] = lambda i: True,
    again: bool = False,
) -> Callable[[Sample], Results]:
    """The gradients of a packed call through a function, of the leaves that are wanted; with order 2, those of a sum of
    them as well; `again`: those of a second time."""

    def run(packed: Sample) -> Results:
        *args, grads = packed.args
        given = leaves_of(op, Sample(tuple(args), packed.kwargs), wanted)
        with torch.enable_grad():
            out = collect(op, function(*given.sample.args, **given.sample.kwargs), given.sample)
            if again:
                _pull(out, given.leaves, grads, order, keep=True)
            return _pull(out, given.leaves, grads, order)

    return run


def truth_of(op: Op[..., Any], sample: Sample) -> Callable[..., Any]:
    """The function whose gradients are the right ones: the reference, which PyTorch differentiates; where a declared
    gradient differs from that on purpose, or is the only one there is, the reference with the formula behind it."""
    return op.calls.seen_through if op.surrogate or not differentiable(op, sample) else op.calls.direct


def differentiable(op: Op[..., Any], sample: Sample) -> bool:
    """Whether PyTorch can differentiate the reference of an operator with a declared gradient, which may leave PyTorch
    (for NumPy, say)."""
    if op.calls.seen_through is op.calls.direct:
        return True
    given = leaves_of(op, sample)
    with torch.enable_grad():
        out = collect(op, op.calls.direct(*given.sample.args, **given.sample.kwargs), given.sample)
    return not given.leaves or any(o is not None and o.requires_grad for o in out)


def by_formula(op: Op[..., Any], order: int) -> Callable[[Sample], Results]:
    """The gradients of a packed call by the rung's reference: what rounding does to an author's formula."""

    def run(packed: Sample) -> Results:
        *args, grads = packed.args
        given = leaves_of(op, Sample(tuple(args), packed.kwargs))
        with torch.enable_grad():
            form, rung = op.recorded_form, op.derivation
            out = collect(form, form.calls.direct(*given.sample.args, **given.sample.kwargs), given.sample)
            values = op.signature.bind(given.sample.args, given.sample.kwargs)
            chosen = [g for i, g in enumerate(grads) if i in op.signature.differentiable_outputs]
            gs = [None if g is None else copy(g).requires_grad_() for g in chosen]
            arguments: dict[str, Any] = dict(zip(rung.grads, gs, strict=True))
            arguments |= {n: values[n] for n in rung.inputs} | {n: out[i] for n, i in rung.outputs.items()}
            found: Results = []
            for p, grad in zip(op.signature.differentiable_inputs, op.backward.calls.direct(**arguments), strict=True):
                if any(map(has_gradient, tensors(values[p.name]))):
                    found += grad if isinstance(grad, (list, tuple)) else [grad]
            if order == 1:
                return found
            return _second(found, given.leaves, [g for g in gs if g is not None])

    return run


def _pull(out: Results, leaves: list[Tensor], grads: list[Tensor | None], order: int, *, keep: bool = False) -> Results:
    gs = [None if g is None else (copy(g).requires_grad_() if order > 1 else copy(g)) for g in grads]
    came = [g for g in gs if g is not None]
    pairs = [(o, g) for o, g in zip(out, gs, strict=True) if o is not None and g is not None and o.requires_grad]
    if not pairs:
        return [None] * (len(leaves) + (len(came) if order > 1 else 0))
    found = torch.autograd.grad(
        [o for o, _ in pairs], leaves, [g for _, g in pairs],
        retain_graph=keep or order > 1, create_graph=order > 1, allow_unused=True,
    )  # fmt: skip
    return list(found) if order == 1 else _second(found, leaves, came)


def _second(found: Sequence[Tensor | None], leaves: list[Tensor], gs: list[Tensor]) -> Results:
    # By their places: whether an absent gradient is None or zeros, and recorded or not, must change no other's weights.
    weighted = [(f, _weights(f, i)) for i, f in enumerate(found) if f is not None and f.requires_grad]
    inputs = [*leaves, *gs]
    if not weighted:
        return [None] * len(inputs)
    return list(torch.autograd.grad([f for f, _ in weighted], inputs, [w for _, w in weighted], allow_unused=True))


def _weights(t: Tensor, place: int) -> Tensor:
    generator = torch.Generator().manual_seed(place + 1)
    return torch.randint(-4, 5, t.shape, generator=generator).to(t.device, t.dtype) / 4


__all__ = [
    "AGAIN", "ALONE", "INCOMING", "LONE", "ONES", "SCALED", "by_formula", "differentiable", "incoming", "leaves_of",
    "pack", "through", "truth_of",
]  # fmt: skip
