"""Several callers at once, and any number of threads, get what one caller gets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from opwright.kit.check import rising
from opwright.kit.check.calls import accepted, attempt, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding
from opwright.kit.spec.samples import Sample
from opwright.kit.truth.oracle import Oracle, Results, copied

PROPERTY = Property(turn=150, device="cpu")

COUNTS = (1, 2, 3, 5, 8)
CALLERS = 4
TIMES = 8


def skip(subject: Subject) -> str | None:
    if subject.op.random:
        return "it draws random numbers"
    return None if subject.has_kernel else "no kernel runs here"


def cases(subject: Subject) -> Iterator[Case]:
    cpu = torch.device(subject.device).type == "cpu"
    for case in subject.few(3):
        if cpu and case.sample < 2:
            yield from (Case(case.sample, case.dtype, variant="big", extra=f"count{n}") for n in COUNTS)
        yield Case(case.sample, case.dtype, extra="callers")
        yield Case(case.sample, case.dtype, variant="big", extra="callers")


def check(subject: Subject, case: Case) -> None:
    op = subject.op
    sample = subject.draw(Case(case.sample, case.dtype, case.layout, case.variant))
    oracle = accepted(lambda: Oracle(reference_of(op), sample, subject.seed))
    before = torch.get_num_threads()
    try:
        if case.extra == "callers":
            _callers(subject, sample, oracle)
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


def _callers(subject: Subject, sample: Sample, oracle: Oracle) -> None:
    """Threads that call it at once, each with values of its own."""
    calls = [(sample, oracle)]
    for k in range(1, CALLERS):
        other = rising.changed(sample, partial(scaled, by=(k + 1) / CALLERS - 0.7))
        calls.append((other, accepted(partial(Oracle, reference_of(subject.op), other, subject.seed))))
    for mine, truth in calls:
        truth.judge(attempt(subject.op, copied(mine)))
    given: list[list[Results]] = [[] for _ in calls]
    found: list[BaseException] = []
    together = threading.Barrier(CALLERS)

    def call(which: int) -> None:
        own = [copied(calls[which][0]) for _ in range(TIMES)]
        together.wait()
        try:
            given[which] = [attempt(subject.op, s) for s in own]
        except BaseException as e:
            found.append(e)

    workers = [threading.Thread(target=call, args=(i,)) for i in range(CALLERS)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    try:
        if found:
            raise found[0]
        for (_, truth), results in zip(calls, given, strict=True):
            for got in results:
                truth.judge(got)
    except Finding as f:
        raise Finding(
            f"with several callers at once, {f.message}", index=f.index, expected=f.expected, got=f.got
        ) from f


def scaled(t: Tensor, by: float) -> Tensor:
    shared = 0 in t.stride() and t.numel() > 1
    return t * by if t.dtype.is_floating_point and not shared else t
