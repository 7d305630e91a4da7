"""On a GPU: everything runs on the current stream, so that it waits for its inputs and is waited for.

Two traps make a kernel on another stream wrong every time, not by luck. The current stream sleeps and only then gets
the inputs their values: a kernel elsewhere reads what was there before, or has not run yet when the results are read on
the current stream at once. Or every other stream sleeps, and the results are read just so. A third is for what
callers share: several streams with inputs of their own begin at the same moment.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.check.calls import accepted, attempt, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import Oracle, Results, copied

PROPERTY = Property(turn=190, device="cuda")

CYCLES = 60_000_000
"""Of sleep: some 30 ms, in which a call is long under way."""


def skip(subject: Subject) -> str | None:
    if torch.device(subject.device).type != "cuda":
        return "there are streams on a GPU alone"
    if subject.op.random:
        return "it draws random numbers"
    return None if subject.has_kernel else "no kernel runs here"


def cases(subject: Subject) -> Iterator[Case]:
    for case in subject.few(3):
        for how in ("late", "early"):
            yield Case(case.sample, case.dtype, extra=how)
            yield Case(case.sample, case.dtype, variant="big", extra=how)
        yield Case(case.sample, case.dtype, variant="big", extra="together")


def check(subject: Subject, case: Case) -> None:
    sample = subject.draw(Case(case.sample, case.dtype, case.layout, case.variant))
    if subject.op.choose(subject.op.signature.bind(sample.args, sample.kwargs))[0] is None:
        raise NotApplicable("the reference runs")
    oracle = accepted(lambda: Oracle(reference_of(subject.op), sample, subject.seed))
    attempt(subject.op, copied(sample))  # built, loaded, and nothing left that a first call waits for
    torch.cuda.synchronize()
    if case.extra == "together":
        _together(subject, sample)
        return
    try:
        oracle.judge(_late(subject, sample) if case.extra == "late" else _early(subject, sample))
    except Finding as f:
        f.message = f"not all of it runs on the current stream: {f.message}"
        raise


STREAMS, CALLS = 4, 6


def _together(subject: Subject, sample: Sample) -> None:
    """Callers on several streams, each with values of its own, all of whom wait for one moment."""
    given = [_scaled(copied(sample), 1 + k / 8) for k in range(STREAMS)]
    oracles = [accepted(lambda: Oracle(reference_of(subject.op), mine, subject.seed)) for mine in given]  # noqa: B023
    streams = [torch.cuda.Stream() for _ in given]
    begin = torch.cuda.Event()
    torch.cuda.synchronize()
    private.gpu_sleep(CYCLES)
    begin.record()
    for each in streams:
        each.wait_event(begin)
    found: list[list[Results]] = [[] for _ in given]
    for _ in range(CALLS):
        for mine, each, results in zip(given, streams, found, strict=True):
            with torch.cuda.stream(each):
                results.append(attempt(subject.op, copied(mine)))
    torch.cuda.synchronize()
    for oracle, results in zip(oracles, found, strict=True):
        for result in results:
            try:
                oracle.judge(result)
            except Finding as f:
                f.message = f"with callers on several streams at once, {f.message}"
                raise


def _scaled(sample: Sample, by: float) -> Sample:
    for t in _floats(sample):
        memory(t).mul_(by)
    return sample


def _late(subject: Subject, sample: Sample) -> Results:
    """The inputs get their values on a stream that sleeps first, and the results are read on it at once."""
    given = copied(sample)
    held = [memory(t) for t in _floats(given)]
    values = [t.clone() for t in held]
    for t in held:
        t.fill_(float("nan"))
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    _poison(subject, sample, side)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        private.gpu_sleep(CYCLES)
        for t, value in zip(held, values, strict=True):
            t.copy_(value)
        results = attempt(subject.op, given)
        own = [None if t is None else t.clone() for t in results]
    torch.cuda.synchronize()
    return own


def _early(subject: Subject, sample: Sample) -> Results:
    """All but the current stream sleep, and the results are read at once."""
    given = copied(sample)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    _poison(subject, sample, side)
    private.gpu_sleep(CYCLES)
    with torch.cuda.stream(side):
        results = attempt(subject.op, given)
        own = [None if t is None else t.clone() for t in results]
        side.synchronize()
    torch.cuda.synchronize()
    return own


def _poison(subject: Subject, sample: Sample, side: torch.cuda.Stream) -> None:
    """Leave no right values in the memory that a stream's next results are given."""
    with torch.cuda.stream(side):
        for t in attempt(subject.op, copied(sample)):
            if t is not None and t.is_floating_point():
                t.fill_(float("nan"))
        side.synchronize()


def _floats(sample: Sample) -> list[Tensor]:
    found = [t for value in (*sample.args, *sample.kwargs.values()) for t in tensors(value)]
    return [t for t in found if t.is_floating_point() and t.numel() and t.is_cuda]


def memory(t: Tensor) -> Tensor:
    """The stretch of memory that a tensor reaches into, as a row."""
    extent = sum((s - 1) * k for s, k in zip(t.shape, t.stride(), strict=True)) + 1
    return t.as_strided((extent,), (1,), t.storage_offset())
