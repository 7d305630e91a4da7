"""On a GPU: nothing is written beside the results, nothing beside the arguments is read, all of a result is written.

Memory comes from an allocator of our own, each piece between two bands of known bytes. PyTorch takes such an allocator
only before it has allocated anything, so this property has a process of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from opwright.kit.build import compile
from opwright.kit.build.plan import Plan
from opwright.kit.build.trouble import BuildError, Unavailable
from opwright.kit.check.calls import accepted, attempt, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.layouts import MIXED
from opwright.kit.check.properties.determinism import differs
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import Results, copied, rebuilt

PROPERTY = Property(turn=210, device="cuda", process="alone")

SOURCES = Path(__file__).parent.parent.parent / "native" / "check_cuda"
FILLS = (0xFF, 0x5A)
"""Bytes of which every floating-point type makes NaN, and a large number."""


def plan() -> Plan:
    """What building the allocator takes."""
    return Plan("check_cuda", tuple(sorted(SOURCES.glob("*.cpp"))), device="cuda")


@lru_cache
def guard() -> ctypes.CDLL | str:
    """The allocator, at work from now on; or why it is not."""
    try:
        library = compile.build(plan()).to_load()
    except (Unavailable, BuildError, OSError) as e:
        return f"its allocator cannot be built here: {str(e).splitlines()[0]}"
    try:
        found = torch.cuda.memory.CUDAPluggableAllocator(library, "opwright_cuda_alloc", "opwright_cuda_free")
        torch.cuda.memory.change_current_allocator(found)
    except RuntimeError:
        return "memory was allocated already, and it needs a process of its own"
    loaded = ctypes.CDLL(library)
    loaded.opwright_cuda_start.argtypes = [ctypes.c_uint8, ctypes.c_uint8]
    loaded.opwright_cuda_outside.argtypes = [ctypes.POINTER(ctypes.c_int64), ctypes.c_int64]
    loaded.opwright_cuda_outside.restype = ctypes.c_int64
    return loaded


def skip(subject: Subject) -> str | None:
    if torch.device(subject.device).type != "cuda":
        return "it watches over memory on a GPU"
    if subject.op.random:
        return "it draws random numbers"
    if not subject.has_kernel:
        return "no kernel runs here"
    found = guard()
    return found if isinstance(found, str) else None


def cases(subject: Subject) -> Iterator[Case]:
    rng = subject.rng("bands")
    for s in range(subject.count):
        yield from (Case(s, d) for d in subject.fast_dtypes)
        yield from (Case(s, subject.main, layout) for layout in ("transposed", "sliced", "misaligned"))
        yield from (Case(s, rng.choice(subject.fast_dtypes), MIXED, v) for v in ("zero", "one", "tail", "tail2"))
        yield Case(s, subject.main, variant="tail")
        yield Case(s, subject.main, variant="big")


def check(subject: Subject, case: Case) -> None:
    sample = subject.draw(case)
    accepted(lambda: reference_of(subject.op)(copied(sample)))
    first = _run(subject, sample, FILLS[0], FILLS[0])
    found = differs(first, _run(subject, sample, FILLS[1], FILLS[0]))
    if found is not None:
        at, a, b = found
        message = f"a result is not initialised: it depends on what its memory held before ({a} or {b})"
        raise Finding(message, index=at, expected=a, got=b)
    found = differs(first, _run(subject, sample, FILLS[0], FILLS[1]))
    if found is not None:
        at, a, b = found
        raise Finding(
            f"memory outside the arguments is read, and changes a result ({a} or {b})", index=at, expected=a, got=b
        )


def _run(subject: Subject, sample: Sample, fill: int, around: int) -> Results:
    """The results of a call whose arguments lie among bytes `around`, in memory that began as bytes `fill`."""
    watching = guard()
    assert not isinstance(watching, str)
    watching.opwright_cuda_start(fill, around)
    op = subject.op
    placed = rebuilt(sample, lambda t: place(t, around))
    values = op.signature.bind(placed.args, placed.kwargs)
    given = [(name, t, storage(t).clone()) for name, value in values.items() for t in tensors(value)]
    results = attempt(op, placed)
    torch.cuda.synchronize()
    room = (ctypes.c_int64 * 30)()
    for i in range(watching.opwright_cuda_outside(room, 10)):
        raise Finding(_about(room[3 * i], room[3 * i + 1], room[3 * i + 2], given, results))
    for name, t, before in given:
        if not op.signature.names[name].mutated and not torch.equal(storage(t), before):
            raise Finding(f"it writes to its argument {name}")
    return [None if r is None else r.detach().clone() for r in results]


def place(t: Tensor, around: int) -> Tensor:
    """The tensor in memory of its own, exactly as large as it must be, its gaps made of the byte `around`."""
    if t.layout != torch.strided or t.device.type != "cuda" or t.numel() == 0:
        return t
    extent = sum((s - 1) * k for s, k in zip(t.shape, t.stride(), strict=True)) + 1
    if extent > 64 * t.numel() + 4096:
        return t  # its rows lie far apart
    offset = t.storage_offset() % 64
    memory = torch.full(((offset + extent) * t.element_size(),), around, dtype=torch.uint8, device=t.device)
    whole = memory.view(t.dtype)
    if extent < t.numel() or 0 in t.stride():
        whole[offset:].copy_(t.as_strided((extent,), (1,), t.storage_offset()))
        return whole.as_strided(t.shape, t.stride(), offset)
    laid = whole.as_strided(t.shape, t.stride(), offset)
    return laid.copy_(t)


def storage(t: Tensor) -> Tensor:
    """All bytes of a tensor's memory; none where that is very large."""
    memory = t.untyped_storage()
    size = 0 if t.layout != torch.strided or memory.nbytes() > 1 << 28 else memory.nbytes()
    return torch.empty(0, dtype=torch.uint8, device=t.device).set_(memory, 0, (size,), (1,))


def _about(address: int, size: int, offset: int, given: list[tuple[str, Tensor, Tensor]], results: Results) -> str:
    whose = "memory that it allocated"
    for name, t, _ in given:
        if t.untyped_storage().data_ptr() == address:
            whose = f"its argument {name}"
    for i, r in enumerate(results):
        if r is not None and r.untyped_storage().data_ptr() == address:
            whose = "its result" if len(results) == 1 else f"its result {i}"
    where = f"{offset - size + 1} bytes past the end of" if offset >= size else f"{-offset} bytes before"
    return f"it writes {where} {whose}, of {size} bytes"
