"""On a GPU: more elements than a float32, an int32 and a uint32 can count."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from opwright.kit.build import cache, lockfile
from opwright.kit.build.trouble import Unavailable
from opwright.kit.check.calls import accepted, attempt, results_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.drawn import climb, source_of
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.check.stretch import Barren, Shapes, Sizes, Stretch
from opwright.kit.op import Op
from opwright.kit.spec.samples import Sample, rung_sample
from opwright.kit.truth.tolerance import eps

PROPERTY = Property(turn=230, device="cuda", once=True)

ELEMENTS = {"float": 2**25 + 1, "contiguous": 2**31 + 9, "strided": 2**31 + 9, "unsigned": 2**32 + 9}
"""By case, the elements of the largest argument. A float32 counts to 2²⁴ and stays there, which shows once there are
twice as many; beyond, it skips numbers."""
COPIES = {"float": 8, "contiguous": 8, "strided": 8, "unsigned": 4}
"""Times as many elements: what kernel, reference and comparison take. The most elements are tried where it may do with
less, since they are where little else would be left: who takes more is told."""
SAMPLES = 2
"""Samples that are made so large: the first that can be."""
CHUNK = 2**26
NEAR = 64
"""Units of rounding, against the reference in the dtype itself: for another there is no memory, and the question is
whether an element is out of place, not how well it is rounded (kit/truth). One that is is off by about its size, while
of so many right ones some are off by 20 units: the reference rounds each of its steps."""
FEW = 2**16
"""Results of so few elements are sums over many. Those may cancel, so that their errors are in proportion to the
largest."""
FULL = "the GPU's memory does not suffice"
COARSE = {"float": 2.0**-4, "unsigned": 2.0**-10}
"""What those may be off by where kernels may add up as they like. Of a count that ends too early, of addends that all
have one sign, they are a multiple; of 2³² addends a thread has so many that their sum, one by one, loses digits."""


def skip(subject: Subject) -> str | None:
    if torch.device(subject.device).type != "cuda":
        return "so much memory is on a GPU alone"
    if subject.op.random:
        return "it draws random numbers"
    if any(p.mutated for p in subject.op.signature.parameters):
        return "it writes to its arguments, which are too large to copy"
    return None if subject.has_kernel else "no kernel runs here"


def cases(subject: Subject) -> Iterator[Case]:
    dtype = min(subject.fast_dtypes, key=lambda d: d.itemsize, default=subject.main)
    plain = [Case(s, dtype, extra="contiguous") for s in range(subject.count)]
    each = ([replace(case, extra=extra) for extra in ("float", "contiguous", "strided")] for case in plain)
    grown = ([case for case in some if isinstance(_sizes(subject, case), dict)] for some in each)
    chosen = list(itertools.islice(filter(None, grown), SAMPLES))
    yield from itertools.chain(*chosen)
    yield from [replace(some[0], extra="unsigned") for some in chosen[:1]] or plain[:1]  # which says why there is none


def check(subject: Subject, case: Case) -> None:
    with turn():
        found = _found(subject, case)
    tried: dict[str, str] = subject._memo.setdefault("large", {})
    if isinstance(found, NotApplicable):
        tried.setdefault(case.extra, str(found))
    else:
        tried[case.extra] = ""
    if found is not None:
        raise found


def notes(subject: Subject) -> list[str]:
    """From how many elements on nothing was tried, where something was with fewer."""
    tried: dict[str, str] = subject._memo.get("large", {})
    if "" in tried.values():
        for extra, beyond in (("contiguous", "2³¹"), ("unsigned", "2³²")):
            if tried.get(extra):
                return [f"{subject.name} was not tried beyond {beyond} elements: {tried[extra]}"]
    return []


def _found(subject: Subject, case: Case) -> Finding | NotApplicable | None:
    """What there is to raise, without a traceback: its frames would hold the tensors."""
    try:
        _check(subject, case)
    except (Finding, NotApplicable) as e:
        e.__context__ = None
        return e.with_traceback(None)
    return None


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """One at a time on this machine: several would take each other's memory."""
    with contextlib.ExitStack() as held:
        # In a folder of our own: in one of everybody's, somebody else could have made the file and keep it locked.
        with contextlib.suppress(Unavailable, OSError):
            lock = held.enter_context(lockfile.opened(cache.open_folder() / "locks" / "large"))
            lockfile.take(lock, wait=True)
        try:
            yield
        finally:
            gc.collect()
            torch.cuda.empty_cache()  # here, where its tensors are gone: other processes want the memory too


def _check(subject: Subject, case: Case) -> None:
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    many = ELEMENTS[case.extra]
    taken = COPIES[case.extra] * many * case.dtype.itemsize
    if free < taken:
        raise NotApplicable(f"it takes {_gib(taken)} of memory, {_gib(free)} are free")
    op = subject.op
    sample = stretched(subject, case)
    if op.choose(op.signature.bind(sample.args, sample.kwargs))[0] is None:
        raise NotApplicable("the reference runs")
    try:
        expected = accepted(lambda: results_of(op, op.calls.direct, sample))
        _poison(many, case.dtype, subject.device)
        got = attempt(op, sample)
        for i, (g, e) in enumerate(zip(got, expected, strict=True)):
            if g is not None and e is not None:
                _compare(g, e, i, COARSE.get(case.extra, 0.0))
    except torch.cuda.OutOfMemoryError:
        raise NotApplicable(FULL) from None


def _gib(size: int) -> str:
    return f"{size >> 30} GiB" if size >> 30 else f"{size >> 20} MiB"


def _sizes(subject: Subject, case: Case) -> Sizes | str:
    """The sizes of a sample that make it so large, or why there are none."""
    try:
        return _search(source_of(subject.op), case.sample, case.dtype, subject.device, ELEMENTS[case.extra])
    except torch.cuda.OutOfMemoryError:
        return FULL


@lru_cache(256)
def _search(source: Op[..., Any], sample: int, dtype: torch.dtype, device: str, many: int) -> Sizes | str:
    """Once for all cases, and for the rungs that are tried on what their operator is."""
    try:
        return Stretch(source, Shapes(dtype, device, 0), sample, _barren(source, sample)).sizes(many)
    except NotApplicable as e:
        return str(e)


@lru_cache(256)
def _barren(source: Op[..., Any], sample: int) -> Barren:
    return {}


def stretched(subject: Subject, case: Case) -> Sample:
    """The sample of a case, whose largest tensor has as many elements as the case wants."""
    sizes = _sizes(subject, case)
    if isinstance(sizes, str):
        raise NotApplicable(sizes)
    source = source_of(subject.op)
    make = Shapes(case.dtype, subject.device, subject.seed, positive=case.extra == "float")
    try:
        sample = Stretch(source, make, case.sample).drawn(sizes, made=True)
    except torch.cuda.OutOfMemoryError:
        raise NotApplicable(FULL) from None
    except Exception:
        raise NotApplicable("no size of it can be made so large") from None
    for below, above in climb(source, subject.op):
        sample = _gradient(below, above, sample, make)
    if case.extra == "strided":
        sample = Sample(tuple(_strided(v) for v in sample.args), {k: _strided(v) for k, v in sample.kwargs.items()})
    return sample


def _gradient(below: Any, above: Any, sample: Sample, make: Shapes) -> Sample:
    try:
        found = rung_sample(below, above, lambda *shape, dtype: make.fresh(*shape, dtype=dtype), sample)
    except torch.cuda.OutOfMemoryError:
        raise NotApplicable(FULL) from None
    if found is None:
        raise NotApplicable("it has no gradient")
    return found


def _strided(value: Any) -> Any:
    """The large tensors among the arguments with a gap behind each row, or between the elements of a vector."""
    if not isinstance(value, Tensor) or value.numel() < ELEMENTS["strided"] // 4 or 0 in value.stride():
        return value
    if value.dim() == 1:
        return torch.empty(2 * value.numel(), dtype=value.dtype, device=value.device)[::2].copy_(value)
    outer = torch.empty((*value.shape[:-1], value.shape[-1] + 1), dtype=value.dtype, device=value.device)
    laid = outer[..., :-1]
    return laid.copy_(value)


def _poison(many: int, dtype: torch.dtype, device: str) -> None:
    """Leave no right results of earlier calls in memory that the next one gets."""
    blank = torch.empty(many + 1024, dtype=dtype, device=device)
    blank.fill_(float("nan") if dtype.is_floating_point else 1)
    del blank


def _compare(got: Tensor, expected: Tensor, i: int, coarse: float = 0.0) -> None:
    if got.shape != expected.shape:
        raise Finding(f"result {i} has shape {tuple(got.shape)}, the reference gives {tuple(expected.shape)}")
    rounded = got.dtype.is_floating_point or got.dtype.is_complex
    wide = torch.promote_types(got.dtype, torch.float32) if rounded else got.dtype
    first, second = (t.reshape(-1) for t in (got, expected))
    for begin in range(0, first.numel(), CHUNK):
        a, b = (t[begin : begin + CHUNK].to(wide) for t in (first, second))
        bad = a != b
        if rounded:
            size, near = b.abs(), NEAR * eps(got.dtype)
            if first.numel() <= FEW:
                size, near = size.where(size.isfinite(), 0).max(), max(near, coarse)
            bad &= ~((a - b).abs() <= near * (1 + size)) & ~(a.isnan() & b.isnan())
        if bool(bad.any()):
            at = int(bad.nonzero()[0])
            raise Finding(
                f"result {i} of {got.numel()} elements is wrong from element {begin + at} on",
                index=[begin + at], expected=str(b[at].item()), got=str(a[at].item()),
            )  # fmt: skip
