"""Nothing is written outside the results, nothing outside the arguments changes one, all of a result is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from opwright.kit.check import bounds, guard, variants
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.layouts import MIXED
from opwright.kit.check.property import Property

PROPERTY = Property(turn=120, device="cpu")


def skip(subject: Subject) -> str | None:
    if subject.op.random:
        return "it draws random numbers"
    if not subject.has_kernel:
        return "no kernel runs here"
    if torch.device(subject.device).type != "cpu":
        return "the guard watches over memory on the CPU alone; compute-sanitizer does on a GPU"
    return guard.unavailable()


def cases(subject: Subject) -> Iterator[Case]:
    rng, fast = subject.rng("memory"), subject.fast_dtypes or [subject.main]
    for s in range(subject.count):
        yield from (Case(s, d) for d in fast)
        yield from (Case(s, subject.main, layout) for layout in ("transposed", "sliced", "rows", "misaligned"))
        yield from (Case(s, rng.choice(fast), MIXED, v) for v in ("zero", "one", "tail", "tail2"))
        yield from (Case(s, d, variant="tail") for d in fast)
        yield from (
            Case(s, subject.main, values=v) for v in rng.sample(subject.indices(s), min(3, len(subject.indices(s))))
        )
        if s == 0:
            yield Case(s, subject.main, variant="big")
    yield from (replace(case, values="") for case in variants.around(subject, 8, rng))


def check(subject: Subject, case: Case) -> None:
    bounds.check(subject, case, guard.on_cpu())
