"""What was adopted is right by itself as well: its second derivative is the reference's, or an error, never lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check.calls import accepted, first_line
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.spec.values import has_gradient, tensors
from opwright.kit.truth.oracle import copied

PROPERTY = Property(turn=35, adopted=True)

TOLERANCE = 1e-6
"""In float64, relative to the largest element: a term that is lost is far beyond it."""


def skip(subject: Subject) -> str | None:
    if subject.op.spec.adopted is None:
        return "it was not adopted"
    if not subject.op.has_rung:
        return "no tensor of it is differentiable"
    if torch.float64 not in subject.fast_dtypes:
        return "it does not take float64, in which derivatives are compared"
    return None


def cases(subject: Subject) -> Iterator[Case]:
    return subject.few(2, dtype=torch.float64)


def check(subject: Subject, case: Case) -> None:
    op, sample = subject.op, subject.draw(case)
    values = op.signature.bind(*_parts(copied(sample)))
    known = op.spec.adopted

    def plain(given: dict[str, Any]) -> list[Tensor]:
        out = op.reference(**given)
        return [out] if op.signature.single else list(out)

    right = accepted(lambda: _second(subject, plain, values))
    if right is None:
        raise NotApplicable("its gradient does not depend on anything")
    try:
        got = _second(subject, known.original, values)
    except RuntimeError as e:
        if "once_differentiable" in str(e):
            return  # an error is what it should be
        raise Finding(f"its own second derivative raises {type(e).__name__}: {first_line(e)}") from None
    if got is None:
        raise Finding(
            "its own gradient has no history: differentiated again, that part is lost without a word; "
            "the operator takes the reference's"
        )
    for name, a, b in zip(_leaf_names(subject, values), got, right, strict=True):
        if not torch.allclose(
            a, b, rtol=TOLERANCE, atol=TOLERANCE * max(1.0, b.abs().max().item() if b.numel() else 1)
        ):
            raise Finding(
                f"its own second derivative, with respect to {name}, is wrong without a word: its backward holds fixed "
                f"what the forward saved; the operator takes the reference's"
            )


def _parts(sample: Any) -> tuple[Any, Any]:
    return sample.args, sample.kwargs


def _leaf_names(subject: Subject, values: dict[str, Any]) -> list[str]:
    inputs = subject.op.signature.differentiable_inputs
    return [p.name for p in inputs for t in tensors(values[p.name]) if has_gradient(t)]


def _second(subject: Subject, function: Any, values: dict[str, Any]) -> list[Tensor] | None:
    """The derivatives of a random sum of the gradients; None: no gradient has a history."""
    op = subject.op
    leaves: list[Tensor] = []

    def leaf(value: Any) -> Any:
        if isinstance(value, Tensor) and has_gradient(value):
            leaves.append(value.detach().clone().requires_grad_())
            return leaves[-1]
        return [leaf(v) for v in value] if isinstance(value, (list, tuple)) else value

    followed = {p.name for p in op.signature.differentiable_inputs}
    given = {n: leaf(v) if n in followed else v for n, v in values.items()}
    outs = function(given)
    generator = torch.Generator().manual_seed(subject.seed)

    def drawn(t: Tensor) -> Tensor:
        return torch.rand(t.shape, generator=generator, dtype=torch.float64).to(t.device)

    chosen = [outs[i] for i in op.signature.differentiable_outputs if has_gradient(outs[i])]
    if not chosen:
        raise NotApplicable("its results are integers, which have no gradient")
    first = torch.autograd.grad(chosen, leaves, [drawn(o) for o in chosen], create_graph=True, allow_unused=True)
    weighed = [(g * drawn(g)).sum() for g in first if g is not None]
    total = sum((w for w in weighed if w.requires_grad), torch.zeros((), dtype=torch.float64))
    if not isinstance(total, Tensor) or not total.requires_grad:
        return None
    second = torch.autograd.grad(total, leaves, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, second, strict=True)]
