"""On a GPU: more than 2³¹ elements, where 32-bit numbers do not reach."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opwright.kit.build import cache, lockfile
from opwright.kit.build.trouble import Unavailable
from opwright.kit.check.calls import accepted, attempt, results_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.drawn import Draw, climb, declared, source_of
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.spec.samples import Sample, rung_sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.tolerance import eps

PROPERTY = Property(turn=230, device="cuda", once=True)

MANY = 2**31 + 9
COPIES = 8
"""Times the elements of the largest argument: what kernel, reference and comparison take."""
CHUNK = 2**26
NEAR = 64
"""Units of rounding, against the reference in the dtype itself: for another there is no memory, and the question is
whether an element is out of place, not how well it is rounded (kit/truth). One that is is off by about its size, while
of so many right ones some are off by 20 units: the reference rounds each of its steps."""
MADE = 2**24
"""Elements of tensors that an author makes without `make`, which take memory while a size is looked for. A size that
they grow with is not one to stretch."""
FEW = 2**16
"""Results of so few elements are sums over many. Those may cancel, so that their errors are in proportion to the
largest."""


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
    for s in range(subject.count):
        yield Case(s, dtype, extra="contiguous")
        yield Case(s, dtype, extra="strided")
        if s > 0:
            break


def check(subject: Subject, case: Case) -> None:
    with turn():
        found = _found(subject, case)
    if found is not None:
        raise found


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
    if free < COPIES * MANY * case.dtype.itemsize:
        raise NotApplicable(
            f"it takes {COPIES * MANY * case.dtype.itemsize >> 30} GiB of memory, {free >> 30} are free"
        )
    op = subject.op
    sample = _stretched(subject, case)
    if op.choose(op.signature.bind(sample.args, sample.kwargs))[0] is None:
        raise NotApplicable("the reference runs")
    try:
        expected = accepted(lambda: results_of(op, op.calls.direct, sample))
        _poison(case.dtype, subject.device)
        got = attempt(op, sample)
        for i, (g, e) in enumerate(zip(got, expected, strict=True)):
            if g is not None and e is not None:
                _compare(g, e, i)
    except torch.cuda.OutOfMemoryError:
        raise NotApplicable("the GPU's memory does not suffice") from None


class _Shapes(Draw):
    """Makes tensors without memory, to learn how large they would be; then ones on the GPU, made there."""

    made = False

    def __init__(self, dtype: torch.dtype, device: str, seed: int) -> None:
        super().__init__(dtype, device, seed)
        self.there = torch.Generator(device).manual_seed(seed)  # `generator` is for authors, who draw on the CPU

    def __call__(self, *shape: int, dtype: torch.dtype | None = None, low: float = -2.0, high: float = 2.0) -> Tensor:
        self.seen.update(dict.fromkeys(s for s in shape if s > 1))
        real = [self.sizes.get(s, s) for s in shape]
        if not self.made:
            return torch.empty(real, dtype=dtype or self.dtype, device="meta")
        return self.fresh(*real, dtype=dtype or self.dtype, low=low, high=high)

    def fresh(self, *shape: int, dtype: torch.dtype, low: float = -2.0, high: float = 2.0) -> Tensor:
        made = torch.empty(shape, dtype=dtype, device=self.device)
        if dtype.is_floating_point or dtype.is_complex:
            (torch.view_as_real(made) if dtype.is_complex else made).uniform_(low, high, generator=self.there)
        elif dtype == torch.bool:
            made.random_(0, 2, generator=self.there)
        else:
            least = max(low, 0) if dtype == torch.uint8 else low
            made.random_(int(least), int(high), generator=self.there)
        return made


def _stretched(subject: Subject, case: Case) -> Sample:
    """A sample with one size so large that its largest tensor has MANY elements."""
    source = source_of(subject.op)
    make = _Shapes(case.dtype, subject.device, subject.seed)

    def drawn() -> Sample:
        samples = declared(source, make)
        for _ in range(case.sample):
            next(samples)
        make.seen.clear()
        return next(samples)

    def elements(size: int, replaced: int) -> list[int]:
        make.sizes = {size: replaced}
        sample = drawn()
        found = [t for value in (*sample.args, *sample.kwargs.values()) for t in tensors(value)]
        if sum(t.numel() for t in found if t.device.type != "meta") > MADE:
            raise NotApplicable("its author's own tensors would be too large")
        return [t.numel() for t in found]

    def enough(size: int) -> int | None:
        """The least value of a size that makes some tensor large enough; None where none grows with it."""
        least, most = 1, 2
        try:
            while max(elements(size, most), default=0) < MANY:
                least, most = most, 2 * most
                if most > 4 * MANY:
                    return None
            while most - least > 1:
                middle = (least + most) // 2
                least, most = (least, middle) if max(elements(size, middle)) >= MANY else (middle, most)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception:  # also where a sample is none with another size
            return None
        return most

    def is_accepted(sizes: dict[int, int], *, made: bool) -> bool:
        make.sizes, make.made = sizes, made
        try:
            sample = drawn()
            source.reference(*sample.args, **sample.kwargs)
        except Exception:
            return False
        finally:
            make.made = False
        return True

    def grows_alone(size: int, least: int) -> bool:
        """Whether the reference takes it: sizes may depend on each other. Tensors without memory suffice to tell, where
        there are no others; else what is larger by a little stands for what is large."""
        if without_memory:
            return is_accepted({size: least}, made=False)
        return any(is_accepted({size: 2 * size + more}, made=True) for more in (0, 1))

    try:
        drawn()
        found = {size: least for size in list(make.seen) if (least := enough(size)) is not None}
        without_memory = is_accepted({}, made=False)
        found = {size: least for size, least in found.items() if grows_alone(size, least)}
        size = min(found, key=lambda s: sum(elements(s, found[s])))
        make.sizes = {size: found[size]}
        make.made = True
        sample = drawn()
    except torch.cuda.OutOfMemoryError:
        raise NotApplicable("the GPU's memory does not suffice") from None
    except Exception:
        raise NotApplicable("no size of it can be made so large") from None
    for below, above in climb(source, subject.op):
        sample = _gradient(below, above, sample, make)
    if case.extra == "strided":
        sample = Sample(tuple(_strided(v) for v in sample.args), {k: _strided(v) for k, v in sample.kwargs.items()})
    return sample


def _gradient(below: Any, above: Any, sample: Sample, make: _Shapes) -> Sample:
    try:
        found = rung_sample(below, above, lambda *shape, dtype: make.fresh(*shape, dtype=dtype), sample)
    except torch.cuda.OutOfMemoryError:
        raise NotApplicable("the GPU's memory does not suffice") from None
    if found is None:
        raise NotApplicable("it has no gradient")
    return found


def _strided(value: Any) -> Any:
    """The large tensors among the arguments with a gap behind each row, or between the elements of a vector."""
    if not isinstance(value, Tensor) or value.numel() < MANY // 4 or 0 in value.stride():
        return value
    if value.dim() == 1:
        return torch.empty(2 * value.numel(), dtype=value.dtype, device=value.device)[::2].copy_(value)
    outer = torch.empty((*value.shape[:-1], value.shape[-1] + 1), dtype=value.dtype, device=value.device)
    laid = outer[..., :-1]
    return laid.copy_(value)


def _poison(dtype: torch.dtype, device: str) -> None:
    """Leave no right results of earlier calls in memory that the next one gets."""
    blank = torch.empty(MANY + 1024, dtype=dtype, device=device)
    blank.fill_(float("nan") if dtype.is_floating_point else 1)
    del blank


def _compare(got: Tensor, expected: Tensor, i: int) -> None:
    if got.shape != expected.shape:
        raise Finding(f"result {i} has shape {tuple(got.shape)}, the reference gives {tuple(expected.shape)}")
    rounded = got.dtype.is_floating_point or got.dtype.is_complex
    wide = torch.promote_types(got.dtype, torch.float32) if rounded else got.dtype
    first, second = (t.reshape(-1) for t in (got, expected))
    for begin in range(0, first.numel(), CHUNK):
        a, b = (t[begin : begin + CHUNK].to(wide) for t in (first, second))
        bad = a != b
        if rounded:
            size = b.abs()
            if first.numel() <= FEW:
                size = size.where(size.isfinite(), 0).max()
            near = NEAR * eps(got.dtype) * (1 + size)
            bad &= ~((a - b).abs() <= near) & ~(a.isnan() & b.isnan())
        if bool(bad.any()):
            at = int(bad.nonzero()[0])
            raise Finding(
                f"result {i} of {got.numel()} elements is wrong from element {begin + at} on",
                index=[begin + at], expected=str(b[at].item()), got=str(a[at].item()),
            )  # fmt: skip
