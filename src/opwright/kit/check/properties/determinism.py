"""The same call gives the same bits; of an operator that is declared otherwise, the same values each time."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from opwright.kit.check.calls import accepted, attempt, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding
from opwright.kit.truth.oracle import Oracle, Results, copied

PROPERTY = Property(turn=140)

TIMES = 4
THREADS = 3


def cases(subject: Subject) -> Iterator[Case]:
    for case in subject.few(4):
        yield case
        if case.sample < 2:
            yield Case(case.sample, case.dtype, variant="big")


def skip(subject: Subject) -> str | None:
    return None if subject.has_kernel else "no kernel runs here"


def check(subject: Subject, case: Case) -> None:
    op, sample = subject.op, subject.draw(case)
    oracle = accepted(lambda: Oracle(reference_of(op), sample, subject.seed))

    def call() -> Results:
        torch.default_generator.manual_seed(subject.seed)
        return attempt(op, copied(sample))

    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        first = call()
        for k in range(1, 2 * TIMES if subject.thorough else TIMES):
            again = call()
            if not op.deterministic:
                oracle.judge(again)
                continue
            differ = differs(first, again)
            if differ is not None:
                at, a, b = differ
                raise Finding(
                    f"call {k + 1} gave other values than the first; where that is meant to be (atomics), say "
                    "deterministic=False",
                    index=at, expected=a, got=b,
                )  # fmt: skip
    finally:
        torch.set_num_threads(before)


def differs(first: Results, second: Results) -> tuple[list[int], str, str] | None:
    """The first element in which two results differ, if any; NaN equals NaN."""
    for a, b in zip(first, second, strict=True):
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            if (a is None) != (b is None):
                return [], str(a is not None), str(b is not None)
            continue
        bad = (a != b) & ~((a != a) & (b != b))
        if bool(bad.any()):
            at = bad.nonzero()[0].tolist()
            return at, str(a[tuple(at)].item()), str(b[tuple(at)].item())
    return None
