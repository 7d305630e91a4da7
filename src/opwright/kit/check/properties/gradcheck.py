"""gradcheck and gradgradcheck hold in float64: reverse, forward, batched, with undefined gradients.

Differences of results are not the truth of kit/truth: PyTorch's own tolerances for them apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check.calls import accepted, collect, first_line
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.derivatives import differentiable, leaves_of
from opwright.kit.check.properties import gradients
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.spec.samples import Sample
from opwright.kit.truth.oracle import rebuilt

PROPERTY = Property(turn=40, once=True)

NO_RULE = "Batching rule not implemented"
"""What PyTorch says where batched gradients meet an operation of its own that it cannot batch there, such as flatten: a
formula that uses one is not to blame."""
SMALL = 48
"""Inputs with more elements are tried along random directions only."""


def skip(subject: Subject) -> str | None:
    signature = subject.op.signature
    if not signature.outputs and signature.returns_input is None:
        return "it has no result"
    if subject.op.surrogate:
        return "its gradient is declared a surrogate, which no difference of results confirms"
    return gradients.skip(subject)


def cases(subject: Subject) -> Iterator[Case]:
    double = [d for d in subject.dtypes if d in (torch.float64, torch.complex128)]
    for s in range(subject.count):
        yield from (Case(s, d, extra="first") for d in double if d == double[0] or s < 2 or subject.thorough)
        if not subject.op.is_gradient and (s < 5 or subject.thorough):
            yield from (Case(s, d, extra="second") for d in double if d == double[0] or subject.thorough)


def check(subject: Subject, case: Case) -> None:
    op = subject.op
    given = leaves_of(op, subject.draw(Case(case.sample, case.dtype)))
    given = leaves_of(op, rebuilt(given.sample, lambda t: t.detach().contiguous()))
    if not given.leaves:
        raise NotApplicable("no tensor of it has a gradient in this dtype")
    if any(t.numel() == 0 for t in given.leaves):
        raise NotApplicable("there is nothing to move")
    if any(0 in t.stride() and t.numel() > 1 for t in given.leaves):
        raise NotApplicable("elements share memory")
    ask = torch.autograd.gradcheck if case.extra == "first" else torch.autograd.gradgradcheck
    options: dict[str, Any] = {"fast_mode": sum(t.numel() for t in given.leaves) > SMALL, "raise_exception": True}
    traced = accepted(lambda: differentiable(op, given.sample))
    if case.extra == "first":
        options |= {"check_undefined_grad": True, "check_batched_grad": traced}
        options |= {"check_forward_ad": traced and not op.is_gradient}

    def ask_of(function: Callable[..., Any]) -> None:
        ask(_of_leaves(subject, function, given.sample, given.leaves), tuple(given.leaves), **options)

    try:
        try:
            ask_of(op)
        except RuntimeError as e:
            if NO_RULE not in str(e):
                raise
            options["check_batched_grad"] = False
            ask_of(op)
    except Exception as e:
        name = "gradcheck" if case.extra == "first" else "gradgradcheck"
        if not traced:
            raise Finding(f"{name} fails: {first_line(e)}") from None
        accepted(lambda: ask_of(op.calls.direct))  # a kink in the reference itself is nobody's mistake
        raise Finding(f"{name} fails, and passes for the reference: {first_line(e)}") from None


def _of_leaves(
    subject: Subject, function: Callable[..., Any], sample: Sample, leaves: list[Tensor]
) -> Callable[..., tuple[Tensor, ...]]:
    op = subject.op
    mutated = {p.name for p in op.signature.parameters if p.mutated}

    def call(*values: Tensor) -> tuple[Tensor, ...]:
        feed = {id(leaf): value for leaf, value in zip(leaves, values, strict=True)}
        remaining = iter(values)

        def place(name: str, value: Any) -> Any:
            if isinstance(value, Tensor):
                if name in mutated:
                    return next(remaining).clone()
                if id(value) in feed:
                    next(remaining)
                    return feed[id(value)]
                return value
            return [place(name, v) for v in value] if isinstance(value, list) else value

        names = [p.name for p in op.signature.parameters]
        args = tuple(place(n, v) for n, v in zip(names, sample.args, strict=False))
        filled = Sample(args, {n: place(n, v) for n, v in sample.kwargs.items()})
        out = collect(op, function(*filled.args, **filled.kwargs), filled)
        return tuple(o for o in out if o is not None and (o.is_floating_point() or o.is_complex()))

    return call
