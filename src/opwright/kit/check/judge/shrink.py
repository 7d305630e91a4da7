"""A failing call made smaller: fewer dimensions, smaller sizes, plainer layouts and values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check.rising import in_order, rising
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import copy, rebuilt

SECONDS = 30.0
MOST = 600
"""Calls that are tried, so that on a quick machine the result does not depend on the time."""
FEW = 64
"""Elements up to which each is looked at by itself."""


class _Enough(Exception):
    pass


class Shrink:
    """The search for a smaller call. `fails` gives what is wrong with a call, None where it is right."""

    def __init__(self, sample: Sample, fails: Callable[[Sample], Any], found: Any = None) -> None:
        self._fails = fails
        self.best = sample
        self.found = found
        self.tries = 0
        kept = {id(t) for t in rising(_all(sample))}
        self._in_order = {i for i, t in enumerate(_all(sample)) if id(t) in kept}
        self._end = time.monotonic() + SECONDS

    def run(self) -> None:
        """Make the call smaller until nothing helps any more, or the time is up."""
        try:
            before = None
            while before is not self.best:
                before = self.best
                self._dense()
                self._dimensions()
                self._sizes()
                self._values()
        except _Enough:
            pass

    def _takes(self, smaller: Sample) -> bool:
        """Whether a smaller call fails as well; then it is the one to go on from."""
        if time.monotonic() > self._end or self.tries >= MOST:
            raise _Enough
        self.tries += 1
        found = self._fails(smaller)
        if found is None:
            return False
        self.best, self.found = smaller, found
        return True

    def _try(self, smaller: Iterator[Sample]) -> bool:
        return any(self._takes(each) for each in smaller)

    def _dense(self) -> None:
        if any(not t.is_contiguous() or t.storage_offset() for t in _all(self.best)):
            self._takes(rebuilt(self.best, lambda t: t.contiguous().clone()))

    def _dimensions(self) -> None:
        while True:
            found = [_without(self.best, s, at) for s in _sizes(self.best) for at in self._places(s)]
            most = max((t.dim() for t in _all(self.best)), default=0)
            if most > 1:
                found.append(rebuilt(self.best, lambda t: t.reshape(-1).clone() if t.dim() > 1 else t))
            if most > 0:
                found.append(rebuilt(self.best, lambda t: copy(t[0]) if t.dim() == most and t.shape[0] else t))  # noqa: B023
            if not self._try(iter(found)):
                return

    def _sizes(self) -> None:
        for size in _sizes(self.best):
            if size < 2:
                continue
            low, high = 0, size
            for n in (1, 2, 3):
                if n < high and self._try(_cut(self.best, size, n, at) for at in self._places(size)):
                    high = n
                    break
                low = n
            # Between what is right and what is wrong.
            while high - low > 1:
                middle = (low + high) // 2
                if self._try(_cut(self.best, high, middle, at) for at in self._places(high)):
                    high = middle
                else:
                    low = middle

    def _places(self, size: int) -> list[int]:
        """Which elements of a dimension to keep: the first, the last, and one whose result is wrong."""
        worst = getattr(getattr(self.found, "finding", None), "index", None) or []
        return list(dict.fromkeys(at for at in (0, size - 1, *worst) if 0 <= at < size))

    def _values(self) -> None:
        for plain in PLAIN[:2]:
            if all(not _is_number(t) or torch.equal(t, plain(t)) for t in _all(self.best)):
                return
            if self._takes(rebuilt(self.best, lambda t: plain(t) if _is_number(t) else t)):  # noqa: B023
                return
        for which in range(len(_all(self.best))):
            for plain in PLAIN:
                changed = self._replaced(which, plain)
                if changed is None or self._takes(changed):
                    break
        for which, t in enumerate(_all(self.best)):
            for at in range(t.numel() if t.numel() <= FEW else 0):
                for value in (0.0, 1.0):
                    changed = self._replaced(which, partial(_with, at=at, value=value))
                    if changed is None or self._takes(changed):
                        break

    def _replaced(self, which: int, plain: Callable[[Tensor], Tensor]) -> Sample | None:
        """The call with one of its tensors changed; None where that is as plain already."""
        old = _all(self.best)[which]
        new = plain(old) if _is_number(old) else old
        if which in self._in_order and new is not old:
            new = in_order(new)
        return None if torch.equal(new, old) else rebuilt(self.best, lambda t: new if t is old else t)


def _all(sample: Sample) -> list[Tensor]:
    return [t for v in (*sample.args, *sample.kwargs.values()) for t in tensors(v)]


def _sizes(sample: Sample) -> list[int]:
    """All sizes of a call, the largest first."""
    return sorted({s for t in _all(sample) for s in t.shape}, reverse=True)


def _cut(sample: Sample, size: int, to: int, at: int) -> Sample:
    """A call with another in place of a size, wherever it stands; the element `at` stays, if it can."""

    def cut(t: Tensor) -> Tensor:
        for d, s in enumerate(t.shape):
            t = t.narrow(d, min(max(at - to + 1, 0), size - to), to) if s == size else t
        return t.contiguous().clone() if dense else copy(t)

    dense = all(t.is_contiguous() for t in _all(sample))
    return rebuilt(sample, cut)


def _without(sample: Sample, size: int, at: int) -> Sample:
    """A call without the dimensions of a size."""

    def drop(t: Tensor) -> Tensor:
        where = [d for d, s in enumerate(t.shape) if s == size]
        return copy(t.select(where[0], at)) if where and size else t

    return rebuilt(sample, drop)


def _is_number(t: Tensor) -> bool:
    return t.is_floating_point() and t.numel() > 0


def _rounded(t: Tensor) -> Tensor:
    return t.round().clamp(-8, 8)


def _with(t: Tensor, at: int, value: float) -> Tensor:
    new = t.contiguous().clone()
    new.view(-1)[at] = value
    return new


PLAIN: tuple[Callable[[Tensor], Tensor], ...] = (torch.zeros_like, torch.ones_like, _rounded)
"""What numbers may become, the plainest first."""
