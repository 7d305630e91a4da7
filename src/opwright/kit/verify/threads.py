"""Several callers at once, and any number of threads, get what one caller gets."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import torch

from opwright.kit.samples import Sample
from opwright.kit.verify import guard
from opwright.kit.verify.calls import accepted, attempt, reference_of
from opwright.kit.verify.cases import Case, Subject
from opwright.kit.verify.oracle import Oracle, copied
from opwright.kit.verify.report import Finding, NotApplicable

COUNTS = (1, 2, 3, 5, 8)
CALLERS = 4
TIMES = 6


def skip(subject: Subject) -> str | None:
    if subject.op.random:
        return "it draws random numbers"
    return None if subject.has_kernel else "no kernel runs here"


def cases(subject: Subject) -> Iterator[Case]:
    cpu = torch.device(subject.device).type == "cpu"
    for case in subject.few(3):
        if cpu:
            yield from (Case(case.sample, case.dtype, variant="big", extra=f"count{n}") for n in COUNTS)
            if any(k.library is not None for k in subject.op.kernels):
                yield Case(case.sample, case.dtype, variant="big", extra="crowd")
        yield Case(case.sample, case.dtype, extra="callers")
        yield Case(case.sample, case.dtype, variant="tail2", extra="callers")


def check(subject: Subject, case: Case) -> None:
    op = subject.op
    sample = subject.draw(Case(case.sample, case.dtype, case.layout, case.variant))
    oracle = accepted(lambda: Oracle(reference_of(op), sample, subject.seed))
    before = torch.get_num_threads()
    try:
        if case.extra == "callers":
            _callers(subject, case, sample, oracle)
        elif case.extra == "crowd":
            attempt(op, copied(sample))
            torch.set_num_threads(4)
            with guard.check_mode(guard.CROWD | 1):
                for _ in range(TIMES):
                    _judge(oracle, subject, sample, "with 4 threads in small pieces")
        else:
            count = int(case.extra.removeprefix("count"))
            torch.set_num_threads(count)
            _judge(oracle, subject, sample, f"with {count} threads" if count > 1 else "with 1 thread")
    finally:
        torch.set_num_threads(before)


def _judge(oracle: Oracle, subject: Subject, sample: Sample, when: str) -> None:
    try:
        oracle.judge(attempt(subject.op, copied(sample)))
    except Finding as f:
        raise Finding(f"{when}, {f.message}", index=f.index, expected=f.expected, got=f.got) from None


def _callers(subject: Subject, case: Case, sample: Sample, oracle: Oracle) -> None:
    """Threads that call it at once, half of them with other arguments."""
    calls = [(sample, oracle)]
    try:
        other = subject.draw(Case(case.sample, case.dtype, variant="tail"))
        calls.append((other, accepted(lambda: Oracle(reference_of(subject.op), other, subject.seed))))
    except NotApplicable:
        calls.append((sample, oracle))
    found: list[Finding | BaseException] = []
    together = threading.Barrier(CALLERS)

    def call(which: int) -> None:
        mine, truth = calls[which % 2]
        together.wait()
        try:
            results = [attempt(subject.op, copied(mine)) for _ in range(TIMES)]
            for got in results:
                truth.judge(got)
        except BaseException as e:
            found.append(e)

    # The oracles compute what they need now: their modes are not for several threads.
    for mine, truth in calls:
        _ = truth.wide, truth.moved
        truth.judge(attempt(subject.op, copied(mine)))
    workers = [threading.Thread(target=call, args=(i,)) for i in range(CALLERS)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    for e in found:
        if isinstance(e, Finding):
            raise Finding(f"with several callers at once, {e.message}", index=e.index, expected=e.expected, got=e.got)
        raise e
