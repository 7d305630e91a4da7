"""Values are those of the reference in float64, within what the reference itself loses in the dtype."""

from __future__ import annotations

from collections.abc import Iterator

from opwright.kit.check.calls import accepted, attempt, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.property import Property
from opwright.kit.truth.oracle import Oracle

PROPERTY = Property(turn=10)


def skip(subject: Subject) -> str | None:
    return "it draws random numbers" if subject.op.random else None


def cases(subject: Subject) -> Iterator[Case]:
    return subject.cases()


def check(subject: Subject, case: Case) -> None:
    sample = subject.draw(case)
    oracle = accepted(lambda: Oracle(reference_of(subject.op), sample, subject.seed))
    oracle.judge(attempt(subject.op, sample))
