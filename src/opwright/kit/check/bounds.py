"""Whether a call keeps to its memory: what it may write, what may change a result, and that all of one is written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from opwright.kit.check.afford import enough
from opwright.kit.check.calls import accepted, attempt, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.guard import BadWrite, Guard
from opwright.kit.check.properties.determinism import differs as first_difference
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import Oracle, Results, rebuilt

FILLS = (0xFF, 0x5A)
"""Bytes of which every floating-point type makes NaN, and a large number."""
AGAIN = 6
"""Times that a difference must show again: a result that is one of two by chance passes for one that memory decides
once in 2 ** (2 * AGAIN) calls."""


def check(subject: Subject, case: Case, guard: Guard | str) -> None:
    """Results are equal to the bit, whatever memory held before and whatever lies around the arguments."""
    assert not isinstance(guard, str)
    sample = subject.draw(case)
    enough(subject.op, sample, case)
    oracle = accepted(lambda: Oracle(reference_of(subject.op), sample, subject.seed))

    def run(fill: int, around: int) -> Results:
        return _run(subject, sample, guard, FILLS[fill], FILLS[around])

    def differs(first: Results, fill: int, around: int) -> tuple[list[int], str, str] | None:
        """Where the results with other bytes in memory differ, unless they may and each is right."""
        found = first_difference(first, other := run(fill, around))
        if found is None or (not subject.op.deterministic and _is_right(oracle, other)):
            return None
        for _ in range(AGAIN):
            # Where memory decides, the same bytes give the same result and others never do.
            if first_difference(first, run(0, 0)) is not None or first_difference(first, run(fill, around)) is None:
                raise NotApplicable("the same call gives other bits each time, which is for `determinism` to judge")
        return found

    with one_thread():
        first = run(0, 0)
        found = differs(first, 1, 0)
        if found is not None:
            at, a, b = found
            message = f"a result is not initialised: it depends on what its memory held before ({a} or {b})"
            raise Finding(message, index=at, expected=a, got=b)
        found = differs(first, 0, 1)
        if found is not None:
            at, a, b = found
            message = f"memory outside the arguments is read, and changes a result ({a} or {b})"
            raise Finding(message, index=at, expected=a, got=b)


def _is_right(oracle: Oracle, results: Results) -> bool:
    try:
        oracle.judge(results)
    except Finding:
        return False
    return True


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """With threads, a result may differ for other reasons."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(subject: Subject, sample: Sample, guard: Guard, fill: int, around: int) -> Results:
    """The results of a call whose arguments lie among bytes `around`, in memory that began as bytes `fill`."""
    op = subject.op
    with guard.filling(fill, around):
        placed = rebuilt(sample, lambda t: _place(t, guard.device, around))
        values = op.signature.bind(placed.args, placed.kwargs)
        given = [(name, t) for name, value in values.items() for t in tensors(value)]
        before = [_storage(t).clone() for _, t in given]
        results = attempt(op, placed)
        for spot in guard.outside():
            raise Finding(_about(spot, given, results))
        for (name, t), old in zip(given, before, strict=True):
            _unchanged(op.signature.names[name].mutated, name, t, old)
    return [None if r is None else r.detach().clone() for r in results]


def _place(t: Tensor, device: str, around: int) -> Tensor:
    """The tensor in memory of its own, exactly as large as it must be, its gaps made of the byte `around`."""
    if t.layout != torch.strided or t.device.type != device:
        return t
    if t.numel() == 0:
        return t.clone()
    extent = sum((s - 1) * k for s, k in zip(t.shape, t.stride(), strict=True)) + 1
    if extent > 64 * t.numel() + 4096:
        return t  # its rows lie far apart
    offset = t.storage_offset() % 64
    memory = torch.full(((offset + extent) * t.element_size(),), around, dtype=torch.uint8, device=t.device)
    whole = memory.view(t.dtype)
    laid = whole.as_strided(t.shape, t.stride(), offset)
    if extent < t.numel() or 0 in t.stride():  # its elements share memory
        whole[offset:].copy_(t.as_strided((extent,), (1,), t.storage_offset()))
    else:
        laid.copy_(t)
    return laid


def _storage(t: Tensor) -> Tensor:
    """All bytes of a tensor's memory; none where that is very large."""
    memory = t.untyped_storage()
    size = 0 if memory.nbytes() > 1 << 28 else memory.nbytes()
    return torch.empty(0, dtype=torch.uint8, device=t.device).set_(memory, 0, (size,), (1,))


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


def _about(spot: BadWrite, given: list[tuple[str, Tensor]], results: Results) -> str:
    whose = "memory that it allocated"
    for name, t in given:
        if t.untyped_storage().data_ptr() == spot.address:
            whose = f"its argument {name}"
    for i, r in enumerate(results):
        if r is not None and r.untyped_storage().data_ptr() == spot.address:
            whose = "its result" if len(results) == 1 else f"its result {i}"
    past = spot.offset - spot.size + 1
    where = f"{past} bytes past the end of" if past > 0 else f"{-spot.offset} bytes before"
    return f"it writes {where} {whose}, of {spot.size} bytes"
