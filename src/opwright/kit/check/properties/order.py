"""Parallel loops give the same in whatever order, sizes and company their chunks run; no two write one place."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from opwright.kit.check import guard
from opwright.kit.check.bounds import one_thread
from opwright.kit.check.calls import accepted, attempt, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding
from opwright.kit.spec.samples import Sample
from opwright.kit.truth.oracle import Oracle, copied

PROPERTY = Property(turn=160, device="cpu")

ORDERS = 3
THREADS = 4
TIMES = 6
SHARED = re.compile(rb"atomic|mutex|\block\b|critical")
"""A source that speaks of these may write one place from two chunks and mean it."""


def skip(subject: Subject) -> str | None:
    if subject.op.random:
        return "it draws random numbers"
    if torch.device(subject.device).type != "cpu":
        return "kernel.h's parallel loop is for the CPU"
    if not any(k.library is not None and k.device == "cpu" for k in subject.op.kernels):
        return "no built kernel runs here"
    return guard.unavailable()


def cases(subject: Subject) -> Iterator[Case]:
    orders = 3 * ORDERS if subject.thorough else ORDERS
    for s in range(subject.count):
        for k in range(1, orders + 1):
            yield Case(s, subject.main, extra=f"order{k}")
            yield Case(s, subject.main, variant="tail2", extra=f"order{k}")
        if s < 2:
            yield Case(s, subject.main, "mixed", "big", "order1")
            yield Case(s, subject.main, "plain", "big", "crowd")


def check(subject: Subject, case: Case) -> None:
    op = subject.op
    sample = subject.draw(Case(case.sample, case.dtype, case.layout, case.variant))
    oracle = accepted(lambda: Oracle(reference_of(op), sample, subject.seed))
    attempt(op, copied(sample))  # builds and loads what it needs
    if case.extra == "crowd":
        _crowd(subject, sample, oracle)
        return
    seed = 1 + subject.rng(case.id).getrandbits(48)
    with one_thread(), guard.guarded() as watching:
        own = copied(sample)
        with guard.check_mode(seed, watch=True):
            got = attempt(op, own)
        spots = watching.twice()
        places = {r.untyped_storage().data_ptr() for r in got if r is not None}
        got = [None if r is None else r.detach().clone() for r in got]
    try:
        oracle.judge(got)
    except Finding as f:
        message = f"with its parallel loops' chunks in another order, {f.message}"
        raise Finding(message, index=f.index, expected=f.expected, got=f.got) from None
    spot = next((s for s in spots if s.address in places or s.address == 0), None)
    if spot is not None and not _means_it(subject):
        where = f"byte {spot.offset} of a result of {spot.size} bytes" if spot.address else "one variable of the kernel"
        raise Finding(f"two chunks of a parallel loop write {where}")


def _crowd(subject: Subject, sample: Sample, oracle: Oracle) -> None:
    """All chunks at once, in many small pieces: what threads do to each other is done often."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        with guard.check_mode(guard.CROWD | 1):
            for _ in range(TIMES):
                oracle.judge(attempt(subject.op, copied(sample)))
    except Finding as f:
        message = f"with its parallel loops in small pieces on {THREADS} threads, {f.message}"
        raise Finding(message, index=f.index, expected=f.expected, got=f.got) from None
    finally:
        torch.set_num_threads(before)


def _means_it(subject: Subject) -> bool:
    sources = [s for k in subject.op.kernels if k.library is not None for s in k.library.plan().sources]
    return any(SHARED.search(s.read_bytes()) for s in sources)
