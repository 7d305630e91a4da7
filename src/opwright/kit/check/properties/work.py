"""A kernel does the work: it is not the operator's own reference once more."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType

from opwright.kit.check.calls import accepted, attempt, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.truth.oracle import copied

PROPERTY = Property(turn=15, once=True)


def skip(subject: Subject) -> str | None:
    if not subject.has_kernel:
        return "no kernel runs here"
    return None if _code(subject) is not None else "its reference is derived"


def cases(subject: Subject) -> Iterator[Case]:
    yield Case(0, subject.main)


def check(subject: Subject, case: Case) -> None:
    """Over all samples together: a kernel may hand some calls to the reference, and not every one."""
    code, tried, handed = _code(subject), 0, 0
    assert code is not None
    for s in range(subject.count):
        try:
            sample = subject.draw(Case(s, case.dtype))
            accepted(lambda: reference_of(subject.op)(copied(sample)))  # noqa: B023
        except NotApplicable:
            continue
        if subject.op.choose(subject.op.signature.bind(sample.args, sample.kwargs))[0] is None:
            continue
        attempt(subject.op, copied(sample))  # shapes may be asked of the reference, once
        with _watched(code) as seen:
            attempt(subject.op, sample)
        tried, handed = tried + 1, handed + bool(seen)
    if not tried:
        raise NotApplicable("no sample reaches a kernel")
    if handed == tried:
        raise Finding("its kernel calls the operator's own reference, in every sample, and computes nothing itself")


def _code(subject: Subject) -> CodeType | None:
    op = subject.op
    return getattr(inspect.unwrap(op.reference), "__code__", None) if op.home is op else None


@contextlib.contextmanager
def _watched(code: CodeType) -> Iterator[list[str]]:
    """Notes whenever a function of Python runs."""
    seen: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is code:
            seen.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(before)
