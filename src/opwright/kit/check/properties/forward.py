"""Values are those of the reference in float64, within what the reference itself loses in the dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from opwright.kit.check.afford import enough, most_elements
from opwright.kit.check.calls import accepted, attempt, in_range, judge, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding
from opwright.kit.op import Op
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.noise import RUNS
from opwright.kit.truth.oracle import Oracle, Results, copied, rebuilt, widened
from opwright.kit.truth.whole import Named, Whole

PROPERTY = Property(turn=10)


def skip(subject: Subject) -> str | None:
    return "it draws random numbers" if subject.op.random else None


def cases(subject: Subject) -> Iterator[Case]:
    return subject.cases()


def check(subject: Subject, case: Case) -> None:
    sample = subject.draw(case)
    enough(subject.op, sample, case)
    runs = RUNS if most_elements(sample) <= MOST else FEW_RUNS
    oracle = accepted(lambda: Oracle(reference_of(subject.op), sample, subject.seed, runs=runs))
    in_range(oracle, case)
    before = copied(sample) if subject.op.spec.written else sample
    got = attempt(subject.op, sample, lenient=case.unforeseen)
    if runs == FEW_RUNS and oracle.pointwise:
        _as_a_whole(subject.op, before, got)
        return
    try:
        judge(oracle, got, case)
    except Finding:
        if kernel_runs(subject.op, before):
            if runs == RUNS:
                raise
            # Of a function that jumps, every run explains half of what is left.
            Oracle(reference_of(subject.op), before, subject.seed).judge(got)
            return
        # PyTorch's own operators meet themselves here: their atomics and half-precision sums are nobody's mistake.
        _as_a_whole(subject.op, before, got)


MOST, FEW_RUNS = 1 << 17, 4
"""Elements beyond which there are fewer runs with rounding errors: they would take too long."""


def kernel_runs(op: Op[..., Any], sample: Sample) -> bool:
    """Whether a kernel takes a call."""
    return op.choose(op.signature.bind(sample.args, sample.kwargs))[0] is not None


def _as_a_whole(op: Op[..., Any], sample: Sample, got: Results) -> None:
    """Judge tensors by their largest errors, and by what the reference loses in one run."""
    reference = reference_of(op)
    eager = accepted(lambda: reference(copied(sample)))
    exact = accepted(lambda: reference(widened(sample)))
    coarse = None
    if any(t.dtype == torch.float64 for v in sample.args for t in tensors(v)):
        single = rebuilt(sample, lambda t: t.float() if t.dtype == torch.float64 else t)
        coarse = accepted(lambda: reference(single))
    floats = [e is not None and (e.is_floating_point() or e.is_complex()) for e in eager]
    for g, e, rounded in zip(got, eager, floats, strict=True):
        if not rounded and g is not None and e is not None and not torch.equal(g, e):
            raise Finding("a result of integers is wrong")
    whole = Whole(_named(exact, floats), _named(eager, floats), None if coarse is None else _named(coarse, floats))
    whole.judge(_named(got, floats))


def _named(results: Results, floats: list[bool]) -> list[Named]:
    named = enumerate(zip(results, floats, strict=True))
    return [
        Named("the result" if len(results) == 1 else f"result {i}", r) for i, (r, f) in named if f and r is not None
    ]
