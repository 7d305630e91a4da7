"""Gradients are those of the reference in float64, in every dtype, however the incoming ones lie in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from opwright.kit.check import alike, derivatives, variants
from opwright.kit.check.afford import enough
from opwright.kit.check.calls import accepted, first_line, in_range, judge, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.layouts import LAYOUTS, MIXED, PLAIN
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.op import Op
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import has_gradient
from opwright.kit.truth.oracle import Oracle, Results, copied

PROPERTY = Property(turn=30)

SECOND = "second"
KINKS = 4
"""Cases of a sample in which an option changes, and some of its numbers are 0."""
TWICE = 4
"""Other options of a sample with which second derivatives are asked for."""
NAMED = {
    derivatives.AGAIN: ", asked for again,", **dict.fromkeys(derivatives.ALONE, ", asked for alone,"),
    **dict.fromkeys(derivatives.LONE, " of one result alone"),
}  # fmt: skip
"""What a message says of gradients beside that they are."""


def skip(subject: Subject) -> str | None:
    op = subject.op
    if op.random:
        return "it draws random numbers"
    if op.form_of is not None:
        return "its operator's gradients are tried, which are recorded by this form"
    if op.role.takes_caches:
        return "it is not differentiated through its extra results; its operator's second derivatives are tried"
    if not op.signature.differentiable_inputs:
        return "no tensor of it is differentiable"
    return None


def cases(subject: Subject) -> Iterator[Case]:
    rng = subject.rng("gradients")
    fast = [d for d in _fast(subject) if d.is_floating_point or d.is_complex]
    slow = [d for d in subject.dtypes if d not in fast and (d.is_floating_point or d.is_complex)]
    for s in range(subject.count):
        yield from (Case(s, d, extra="dense") for d in slow)
        if not fast:
            yield Case(s, torch.float64, extra=SECOND)
            if subject.op.has_rung and subject.op.has_declared_gradient:
                yield from (replace(c, extra="dense") for c in _kinks(subject, s, rng) if c.dtype in slow)
                yield from (Case(s, torch.float64, values=v, extra=SECOND) for v in _twice(subject, s))
            continue
        yield from (Case(s, d, extra=kind) for d in fast for kind in derivatives.INCOMING[: 2 if d != fast[0] else 4])
        scaled = [kind for kind in derivatives.SCALED if fast[0] != torch.float16]
        more = (*scaled, derivatives.ONES, *derivatives.ALONE, derivatives.AGAIN, *derivatives.LONE)
        yield from (Case(s, fast[0], extra=kind) for kind in more)
        layouts = [*LAYOUTS] if subject.thorough else ["transposed", "sliced", "expanded", "far"]
        yield from (Case(s, fast[0], layout, extra="dense") for layout in layouts)
        yield from (Case(s, fast[0], "expanded", extra=kind) for kind in derivatives.ALONE)  # a frozen weight's rows
        yield from (Case(s, d, MIXED, extra=rng.choice(derivatives.INCOMING)) for d in fast)
        for variant in ("zero", "one", "tail", *(["big"] if s < 2 or subject.thorough else [])):
            yield Case(s, rng.choice(fast), rng.choice((PLAIN, MIXED)), variant, rng.choice(derivatives.INCOMING))
        if not subject.op.is_gradient:
            yield from (Case(s, d, extra=SECOND) for d in fast if d in (fast[0], torch.float64) or subject.thorough)
            yield Case(s, rng.choice(fast), MIXED, "tail", SECOND)
            yield from (Case(s, fast[0], values=v, extra=SECOND) for v in _twice(subject, s))
        most = None if subject.thorough else 2
        others = [c for c in variants.other_values(subject, s, rng, most) if c.dtype in fast]
        others += [c for c in _kinks(subject, s, rng) if c.dtype in fast]
        yield from (replace(c, extra="dense") for c in dict.fromkeys(others))
    if fast and subject.fast_dtypes:
        yield from (replace(c, extra="dense") for c in variants.around(subject, 8, rng) if c.dtype in fast)


def _twice(subject: Subject, s: int) -> list[str]:
    """Options with which second derivatives are asked for."""
    found, rng = subject.options(s), subject.rng("twice", s)
    return rng.sample(found, min(TWICE, len(found)))


def _kinks(subject: Subject, s: int, rng: random.Random) -> Iterator[Case]:
    """Numbers at which formulas divide by zero, or choose: zeros, ones and ties, also with other options."""
    main, options = subject.main, subject.options(s)
    yield from (Case(s, main, values=v) for v in ("halves", "zeros", alike.ONES))
    yield from (Case(s, main, values=f"{v}+zeros") for v in rng.sample(options, min(KINKS, len(options))))


def _fast(subject: Subject) -> list[torch.dtype]:
    """The dtypes in which a kernel runs, here or on the rung above."""
    op: Op[..., object] = subject.op
    if not op.has_rung or op.recorded_by_reference:
        return subject.fast_dtypes
    return [*dict.fromkeys([*subject.fast_dtypes, *Subject(op.backward, subject.device).fast_dtypes])]


def check(subject: Subject, case: Case) -> None:
    op = subject.op
    sample = subject.draw(replace(case, extra=""))
    count = len(derivatives.leaves_of(op, sample).leaves)
    if not count:
        raise NotApplicable("no tensor of it has a gradient in this dtype")
    if case.extra in derivatives.ALONE and count == 1:
        raise NotApplicable("it has one alone")
    only = {"first": 0, "last": count - 1}.get(case.extra)
    enough(op, sample, case)
    results = accepted(lambda: reference_of(op)(copied(sample)))
    if case.extra in derivatives.LONE and sum(r is not None and has_gradient(r) for r in results) < 2:
        raise NotApplicable("it has one result alone")
    order, kind = (2, "dense") if case.extra == SECOND else (1, case.extra)
    again = case.extra == derivatives.AGAIN
    generator = torch.Generator().manual_seed(subject.seed)
    packed = derivatives.pack(sample, derivatives.incoming(results, kind, generator))
    # With extra results the formula serves once: second derivatives are those of the reference.
    declared = op.has_rung and op.has_declared_gradient and (order == 1 or op.recorded_form is op) and only is None
    formula = derivatives.by_formula(op, order) if declared else None
    truth = accepted(lambda: derivatives.truth_of(op, sample))
    pull = partial(derivatives.through, op, order=order, wanted=lambda i: only in (None, i))
    oracle = accepted(lambda: Oracle(pull(truth), packed, subject.seed, formula, gradient=True))
    in_range(oracle, case)
    try:
        got = pull(op, again=again)(packed)
    except Exception as e:
        if case.unforeseen:
            raise NotApplicable(f"the operator refuses it: {first_line(e)}") from None
        raise Finding(f"it raised {type(e).__name__} where the reference has gradients: {first_line(e)}") from None
    judge(oracle, got, case, f"gradient{NAMED.get(case.extra, '')}" if order == 1 else "second derivative")
    if formula is not None and op.recorded_by_reference:
        # Autograd sees through the reference; graphs take the declared formula.
        oracle.judge(_by(formula, packed), "declared gradient" if order == 1 else "declared gradient's derivative")


def _by(formula: Callable[[Sample], Results], packed: Sample) -> Results:
    try:
        return formula(packed)
    except Exception as e:
        raise Finding(f"its declared gradient raised {type(e).__name__}: {first_line(e)}") from None
