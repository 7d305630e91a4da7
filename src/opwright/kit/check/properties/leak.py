"""Memory stays flat over many calls: tensors, and what a kernel takes from the heap."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator

import torch

from opwright.kit.check import derivatives, guard
from opwright.kit.check.calls import accepted, attempt, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding
from opwright.kit.truth.oracle import copied

PROPERTY = Property(turn=180, device="cpu", once=True)

CALLS = 64
ROUNDS = 3


def skip(subject: Subject) -> str | None:
    if not subject.has_kernel:
        return "no kernel runs here"
    if torch.device(subject.device).type != "cpu":
        return "it watches the heap of the CPU"
    if _heap() is None:
        return "this C library does not say how much of its heap is in use"
    return guard.unavailable()


def cases(subject: Subject) -> Iterator[Case]:
    for case in subject.few(2):
        yield Case(case.sample, case.dtype, extra="forward")
        yield Case(case.sample, case.dtype, extra="kept")
        if subject.op.has_rung and not subject.op.random:
            yield Case(case.sample, case.dtype, extra="backward")


def check(subject: Subject, case: Case) -> None:
    op, sample = subject.op, subject.draw(Case(case.sample, case.dtype))
    results = accepted(lambda: reference_of(op)(copied(sample)))
    packed = derivatives.pack(sample, derivatives.incoming(results, "dense", torch.Generator().manual_seed(0)))
    back = derivatives.through(op, op, 1)

    def forward() -> None:
        attempt(op, sample)

    def backward() -> None:
        back(packed)

    if case.extra == "kept":
        _nothing_kept(subject, case)
    elif any(p.mutated for p in op.signature.parameters):
        own = copied(sample)
        _flat(lambda: attempt(op, own))
    else:
        _flat(forward if case.extra == "forward" else backward)


def _nothing_kept(subject: Subject, case: Case) -> None:
    """Neither arguments nor results of a call outlive it."""
    plain = Case(case.sample, case.dtype)
    for _ in range(2):
        attempt(subject.op, subject.draw(plain))  # what it makes once and keeps for good is its own affair
    gc.freeze()
    try:
        with guard.guarded() as watching:
            before = watching.live
            sample = copied(subject.draw(plain))
            results = attempt(subject.op, sample)
            del sample, results
            gc.collect()
            kept = watching.live - before
    finally:
        gc.unfreeze()
    if kept > 0:
        raise Finding(f"a call keeps {kept} bytes of its arguments or results alive")


def _flat(call: Callable[[], object]) -> None:
    for _ in range(CALLS):
        call()
    gc.freeze()  # so that the collections below look at what is new alone
    try:
        with guard.guarded() as watching:
            kept = [_measure(call, watching) for _ in range(ROUNDS)]
    finally:
        gc.unfreeze()
    tensors = [a for a, _ in kept]
    heap = [b for _, b in kept]
    if min(tensors) >= CALLS:
        raise Finding(f"tensors are kept: {min(tensors) / CALLS:.0f} bytes more with each call")
    # The interpreter's own tables grow now and then, not in every round.
    if min(heap) >= 16 * CALLS:
        raise Finding(f"memory is not given back: {min(heap) / CALLS:.0f} bytes of the heap with each call")


def _measure(call: Callable[[], object], watching: guard.CpuGuard) -> tuple[int, int]:
    gc.collect()
    before, heap = watching.live, _heap() or 0
    for _ in range(CALLS):
        call()
    gc.collect()
    return watching.live - before, (_heap() or 0) - heap


FIELDS = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]


class _Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def _heap() -> int | None:
    """Bytes of the heap that are in use."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return None
    ask.restype = _Info
    found = ask()
    return int(found.uordblks + found.hblkhd)
