"""Under autocast, results have the dtype and the values that the reference gives there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from opwright.kit.check.calls import accepted, first_line, results_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding
from opwright.kit.spec.samples import Sample
from opwright.kit.truth.oracle import Oracle, Results, copied

PROPERTY = Property(turn=110)


def skip(subject: Subject) -> str | None:
    if subject.op.is_gradient and subject.op.home.autocast is not None:
        return "its operator declares what is cast, and a gradient takes what came of that"
    return "it draws random numbers" if subject.op.random else None


def cases(subject: Subject) -> Iterator[Case]:
    for dtype in [d for d in (torch.float32, torch.bfloat16) if d in subject.dtypes]:
        for case in subject.few(3, dtype=dtype):
            yield Case(case.sample, case.dtype, extra="bfloat16")


def check(subject: Subject, case: Case) -> None:
    op = subject.op
    sample = subject.draw(Case(case.sample, case.dtype))
    run = _under(subject, op.calls.direct)
    oracle = accepted(lambda: Oracle(run, sample, subject.seed))
    try:
        got = _under(subject, op)(copied(sample))
    except Exception as e:
        raise Finding(f"under autocast it raised {type(e).__name__}: {first_line(e)}") from None
    oracle.judge(got, "result under autocast")


def _under(subject: Subject, function: Callable[..., Any]) -> Callable[[Sample], Results]:
    def run(sample: Sample) -> Results:
        with warnings.catch_warnings(), torch.autocast(torch.device(subject.device).type, dtype=torch.bfloat16):
            warnings.simplefilter("ignore")
            return results_of(subject.op, function, sample)

    return run
