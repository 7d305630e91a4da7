"""Nothing is written outside the results, nothing outside the arguments changes one, all of a result is written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check import guard
from opwright.kit.check.calls import accepted, attempt, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.layouts import MIXED
from opwright.kit.check.properties.determinism import differs
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import Results, copied, rebuilt

PROPERTY = Property(turn=120, device="cpu")

FILLS = (0xFF, 0x5A)
"""Bytes of which every floating-point type makes NaN, and a large number."""


def skip(subject: Subject) -> str | None:
    if subject.op.random:
        return "it draws random numbers"
    if not subject.has_kernel:
        return "no kernel runs here"
    if torch.device(subject.device).type != "cpu":
        return "the guard watches over memory on the CPU alone; compute-sanitizer does on a GPU"
    return guard.unavailable()


def cases(subject: Subject) -> Iterator[Case]:
    rng = subject.rng("memory")
    for s in range(subject.count):
        yield from (Case(s, d) for d in subject.fast_dtypes)
        yield from (Case(s, subject.main, layout) for layout in ("transposed", "sliced", "rows", "misaligned"))
        yield from (Case(s, rng.choice(subject.fast_dtypes), MIXED, v) for v in ("zero", "one", "tail", "tail2"))
        yield from (Case(s, d, variant="tail") for d in subject.fast_dtypes)
        if s == 0:
            yield Case(s, subject.main, variant="big")


def check(subject: Subject, case: Case) -> None:
    sample = subject.draw(case)
    accepted(lambda: reference_of(subject.op)(copied(sample)))
    with one_thread():
        first = _run(subject, sample, FILLS[0], FILLS[0])
        found = differs(first, _run(subject, sample, FILLS[1], FILLS[0]))
        if found is not None:
            at, a, b = found
            message = f"a result is not initialised: it depends on what its memory held before ({a} or {b})"
            raise Finding(message, index=at, expected=a, got=b)
        found = differs(first, _run(subject, sample, FILLS[0], FILLS[1]))
        if found is not None:
            at, a, b = found
            message = f"memory outside the arguments is read, and changes a result ({a} or {b})"
            raise Finding(message, index=at, expected=a, got=b)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """With threads, a result may differ for other reasons."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(subject: Subject, sample: Sample, fill: int, around: int) -> Results:
    """The results of a call whose arguments lie among bytes `around`, in memory that began as bytes `fill`."""
    op = subject.op
    with guard.guarded(fill, around) as watching:
        placed = rebuilt(sample, lambda t: place(t, around))
        values = op.signature.bind(placed.args, placed.kwargs)
        given = [(name, t) for name, value in values.items() for t in tensors(value)]
        before = [_storage(t).clone() for _, t in given]
        results = attempt(op, placed)
        for spot in watching.outside():
            raise Finding(_about(spot, given, results))
        for (name, t), old in zip(given, before, strict=True):
            _unchanged(op.signature.names[name].mutated, name, t, old)
        own = [None if r is None else r.detach().clone() for r in results]
    with contextlib.suppress(RuntimeError):
        own = [None if r is None else r.clone() for r in own]
    return own


def place(t: Tensor, around: int) -> Tensor:
    """The tensor in memory of its own whose other elements are made of the byte `around`."""
    if t.layout != torch.strided or t.device.type != "cpu":
        return t
    if t.numel() == 0:
        return t.clone()
    extent = sum((s - 1) * k for s, k in zip(t.shape, t.stride(), strict=True)) + 1
    if extent > 64 * t.numel() + 4096:
        return t  # its rows lie far apart
    offset = t.storage_offset() % 64
    memory = torch.full(((offset + extent) * t.element_size(),), around, dtype=torch.uint8)
    laid = memory.view(t.dtype).as_strided(t.shape, t.stride(), offset)
    if _shares(t):
        memory.view(t.dtype)[offset:].copy_(_flat(t, extent))
    else:
        laid.copy_(t)
    return laid


def _shares(t: Tensor) -> bool:
    extent = sum((s - 1) * k for s, k in zip(t.shape, t.stride(), strict=True)) + 1
    return extent < t.numel() or (0 in t.stride() and t.numel() > 1)


def _flat(t: Tensor, extent: int) -> Tensor:
    return t.as_strided((extent,), (1,), t.storage_offset())


def _storage(t: Tensor) -> Tensor:
    storage = t.untyped_storage()
    if storage.nbytes() > 1 << 28:
        return torch.empty(0, dtype=torch.uint8)  # far rows
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))


def _unchanged(mutated: bool, name: str, t: Tensor, before: Tensor) -> None:
    now = _storage(t)
    if now.numel() != before.numel() or now.numel() == 0:
        return
    if not mutated:
        if not torch.equal(now, before):
            raise Finding(f"it writes to its argument {name}")
        return
    # What lies between the elements of an argument that is written to must stay as it was.
    expected = before.view(t.dtype).as_strided(t.shape, t.stride(), t.storage_offset())
    expected.copy_(t)
    if not torch.equal(now, before):
        raise Finding(f"it writes between the elements of its argument {name}")


def _about(spot: guard.Place, given: list[tuple[str, Tensor]], results: Results) -> str:
    whose = "memory that it allocated"
    for name, t in given:
        if t.untyped_storage().data_ptr() == spot.address:
            whose = f"its argument {name}"
    for i, r in enumerate(results):
        if r is not None and r.untyped_storage().data_ptr() == spot.address:
            whose = "its result" if len(results) == 1 else f"its result {i}"
    if spot.offset >= spot.size:
        where = f"{spot.offset - spot.size + 1} bytes past the end of"
    else:
        where = f"{-spot.offset} bytes before"
    return f"it writes {where} {whose}, of {spot.size} bytes"


_ = Any
