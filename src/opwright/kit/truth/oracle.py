"""What a result must be: the reference in float64, and how far from it a right kernel may come to lie.

A result is right when it lies within LOSS times what the reference itself loses in the dtype at hand (see noise.py),
plus ULPS units in the last place, of the reference's result in float64 or of its result in the dtype itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from opwright.kit.spec.require import spell
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth import noise
from opwright.kit.truth.extent import Extent
from opwright.kit.truth.tolerance import LOSS, accumulates, eps, least, units, widen, within

AGAIN, FURTHER = 8, 1 << 20
"""How many times as many runs there are for a function that jumps, and how far apart their seeds lie."""
FAR_APART = 1 << 18
"""Elements between rows up to which a copy keeps the strides: PyTorch itself may round differently without them."""
NARROW = {torch.float32, torch.float16, torch.bfloat16, torch.complex64}

Results = list[Tensor | None]
Run = Callable[[Sample], Results]


class Finding(Exception):
    """Raised for a case in which a property does not hold."""

    def __init__(
        self, message: str, *, index: Any = None, expected: Any = None, got: Any = None, shape: Any = None
    ) -> None:
        super().__init__(message)
        self.message, self.index, self.expected, self.got = message, index, expected, got
        self.shape = shape
        """That of the result with the element."""
        self.result: int | None = None
        """Which result has wrong values, where that is what was found."""
        self.overflows = False
        """Whether the worst of them is infinite or NaN where the reference is finite, or the other way round."""
        self.few = False
        """Whether few of a result's elements are wrong."""
        self.call: Sample | None = None
        """The call in which it shows, where that is not the case's own."""


class Oracle:
    """The reference's answer to a call. `run` gives its results from a sample; it is asked in several dtypes."""

    def __init__(
        self,
        run: Run,
        sample: Sample,
        seed: int = 0,
        extra_noise: Run | None = None,
        runs: int = noise.RUNS,
        *,
        gradient: bool = False,
    ) -> None:
        self._run, self._sample, self._seed, self._runs, self._gradient = run, sample, seed, runs, gradient
        given = copied(sample)
        with noise.Recorder() as recorder:
            self.same = run(given)
        """In the dtype at hand."""
        self.recorded, self.pointwise = recorder.seen, recorder.pointwise
        self.selects, self.weighs = recorder.selects, recorder.weighs
        self._wide: Results | None = None
        self._fits: bool | None = None
        self._moved: list[Results] = []
        self._tried = self._astray = 0
        self._jumps = False
        self._to_come = self._noisy(self._run, self.recorded)
        if extra_noise is not None:
            self._to_come = itertools.chain(self._to_come, self._around_exact(extra_noise))

    @property
    def wide(self) -> Results:
        """In float64, complex128."""
        if self._wide is None:
            try:
                self._wide = self._run(widened(self._sample))
            except Exception:
                self._wide = self.same  # a reference that takes this dtype alone
            if [_shape(t) for t in self._wide] != [_shape(t) for t in self.same]:
                self._wide = self.same  # its shape depends on values, or its outputs on the dtype
        return self._wide

    @property
    def fits(self) -> bool:
        """Whether the reference's intermediate results lie well within the range of their dtypes. Where they do not,
        it depends on the order of operations what comes of them, and a result says nothing."""
        if self._fits is None:
            with Extent(self.recorded, narrowest(self._sample), 3 if self._gradient else 2) as extent:
                try:
                    self._run(widened(self._sample))
                except Exception:
                    extent.left = True
            self._fits = not extent.left
        return self._fits

    def chaotic(self, i: int) -> bool:
        """Whether rounding errors alone decide a result: a tenth of its elements lie elsewhere in some run, by half of
        what they are and not by little, or most runs end in an error. What runs have not shown says nothing there, as
        after many steps that each tell numbers apart."""
        wide = self.wide[i]
        if wide is None or not wide.numel() or not (wide.is_floating_point() or wide.is_complex()):
            return False
        exact = _double(wide.detach())
        size, spread = exact.abs().nan_to_num(0, 0, 0), torch.zeros_like(exact, dtype=torch.float64)
        moved_runs = [*self.moved()]
        if self._astray * 2 > self._tried:
            return True  # to an error most of the time
        for moved in moved_runs:
            spread = torch.maximum(spread, (self._of(moved, i, exact) - exact).abs().nan_to_num(0, 0, 0))
        scattered = (spread > size / 2) & (spread > 0.1 * size.max())
        self._jumps = bool(scattered.any())
        return bool(scattered.sum() * 10 > scattered.numel())

    def asked_again(self, i: int) -> bool:
        """Whether there are further runs to judge by: rounding errors have led elements of this result elsewhere, few
        of them in any one run, and where they have not yet may be a matter of so many runs."""
        if self.chaotic(i) or not self._jumps or self._runs > noise.RUNS:
            return False
        self._runs *= AGAIN
        self._to_come = itertools.chain(*(self._noisy(self._run, self.recorded, k) for k in range(1, AGAIN)))
        return True

    def moved(self) -> Iterator[Results]:
        """In float64 with rounding errors of the dtype at hand, several times; each computed when it is asked for."""
        for i in itertools.count():
            if i == len(self._moved):
                more = next(self._to_come, None)
                if more is None:
                    return
                self._moved.append(more)
            yield self._moved[i]

    def _noisy(self, run: Run, recorded: list[noise.Step], further: int = 0) -> Iterator[Results]:
        sample = self._sample if self.wide is self.same else widened(self._sample)
        runs = noise.measure(
            run, partial(copied, sample), recorded, narrowest(self._sample), self._seed + FURTHER * further,
            tears=self._gradient,
        )  # fmt: skip
        for found in itertools.islice(runs, self._runs):
            self._tried += 1
            if found is None:  # noise led the reference astray
                self._astray += 1
            elif [_shape(t) for t in found] == [_shape(t) for t in self.same]:
                yield found

    def _around_exact(self, run: Run) -> Iterator[Results]:
        """The noise of another way to compute the same: how far it moves from its own result, whatever that is."""
        try:
            center = run(widened(self._sample))
        except Exception:
            return
        if [_shape(t) for t in center] != [_shape(t) for t in self.wide]:
            return
        for moved in self._noisy(run, []):
            yield [
                None if m is None or c is None or w is None else torch.where(c.isfinite(), (m - c) + w, w)
                for m, c, w in zip(moved, center, self.wide, strict=True)
            ]  # where it is no number itself, its noise excuses nothing

    def judge(self, got: Results, what: str = "result", also: Callable[[], Results] | None = None) -> None:
        """Raise Finding unless these results are right, or those that the reference gives in the same place: `also`
        is asked when they seem wrong."""
        try:
            self._judge(got, what)
        except Finding:
            if also is None or not _alike(got, also):
                raise

    def _judge(self, got: Results, what: str) -> None:
        if len(got) != len(self.same):
            raise Finding(f"{len(got)} {what}s, the reference gives {len(self.same)}")
        for i, (g, e) in enumerate(zip(got, self.same, strict=True)):
            name = what if len(got) == 1 else f"{what} {i}"
            if g is None or e is None:
                other = e if g is None else g
                if other is not None and other.numel() and not bool((other == 0).all()):
                    state = "absent" if g is None else "there"
                    raise Finding(f"the {name} is {state}, the reference gives {'one' if g is None else 'none'}")
                continue
            comparable(g, e.shape, e.dtype, f"the {name}")
            if g.numel():
                try:
                    self._judge_values(i, g.detach(), name)
                except Finding as f:
                    f.result = i
                    raise

    def _judge_values(self, i: int, g: Tensor, name: str) -> None:
        same = self.same[i]
        assert same is not None
        same = same.detach()
        if g.dtype == torch.complex32:
            g, same = g.to(torch.complex64), same.to(torch.complex64)  # PyTorch compares no others
            self._judge_floats(i, g, same, name, torch.complex32)
            return
        if not (g.dtype.is_floating_point or g.dtype.is_complex):
            self._judge_exact(i, g, name)
            return
        self._judge_floats(i, g, same, name, g.dtype)

    def _judge_floats(self, i: int, g: Tensor, same: Tensor, name: str, dtype: torch.dtype) -> None:
        if torch.equal(g, same):
            return  # it loses exactly what the reference loses
        value, near = _double(g), _double(same)
        exact = self._of(self.wide, i, near)
        floor = units(dtype)
        # What is summed or normalised passes through steps of which a kernel may have others: subnormal numbers that
        # are lost in them are lost. float16 has too many for that.
        whole = self.pointwise or dtype == torch.float16
        tiny = least(dtype) if whole else float(torch.finfo(dtype).smallest_normal)
        if self._gradient:
            # Where a function has become flat its slope is next to nothing, and differently so by every formula.
            tiny += eps(accumulates(dtype)) ** 2 * float(exact.abs().nan_to_num(0, 0, 0).max())
        # Where the reference itself overflowed, any other way to do so is as good.
        lost = ~near.isfinite() & exact.isfinite() & ~value.isfinite()
        # No share of an infinity is allowed: it would be one itself, and every number near it.
        share = floor * exact.abs().nan_to_num(0, 0, 0) + tiny
        bad = ~(within(value, exact, share, dtype) | within(value, near, tiny, dtype) | lost)
        if not bool(bad.any()):
            return
        most = floor * torch.maximum(exact.abs(), near.abs()).nan_to_num(0, 0, 0) + tiny
        loss: Tensor | None = None
        torn = torch.zeros_like(bad)  # between infinities, or from one to a number: what lies there may be NaN too
        for moved in self.moved():
            # Every run can only allow more: the first that explains the result is the last one needed.
            m = self._of(moved, i, exact)
            alike = (m == exact) | (m.isnan() & exact.isnan())  # an infinity that stays one has lost nothing
            here = torch.where(alike, 0.0, (m - exact).abs().nan_to_num(nan=math.inf, posinf=math.inf))
            loss = here if loss is None else torch.maximum(loss, here)
            torn |= ~alike & ~(m.isfinite() & exact.isfinite())
            allowed = most + LOSS * loss
            bad = ~(within(value, exact, allowed, dtype) | within(value, near, allowed, dtype))
            bad &= ~(lost | (torn & ~value.isfinite()))
            if not bool(bad.any()):
                return
        if loss is None:
            alike = (near == exact) | (near.isnan() & exact.isnan())
            off = torch.where(alike, 0.0, (near - exact).abs())
            allowed = most + LOSS * 2 * torch.maximum(off, off.nan_to_num(0, 0, 0).max()).nan_to_num(nan=math.inf)
            bad = ~(within(value, exact, allowed, dtype) | within(value, near, allowed, dtype))
            if not bool(bad.any()):
                return
        self._report(value, exact, near, allowed, bad, name, dtype)

    def _judge_exact(self, i: int, g: Tensor, name: str) -> None:
        def others() -> list[Tensor]:
            each = [results[i] for results in (self.wide, *self.moved())]
            return [t for t in each if t is not None and t.shape == g.shape and t.dtype == g.dtype]

        same = self.same[i]
        assert same is not None
        bad = g != same
        if bool(bad.any()):
            for t in others():
                bad &= g != t
        if bool(bad.any()):
            at = tuple(bad.nonzero()[0].tolist())
            raise Finding(
                f"the {name} is wrong in {int(bad.sum())} of {bad.numel()} elements",
                index=list(at), expected=str(same[at].item()), got=str(g[at].item()), shape=g.shape,
            )  # fmt: skip

    @staticmethod
    def _of(results: Results, i: int, default: Tensor) -> Tensor:
        t = results[i]
        return default if t is None else _double(t.detach()).to(default.dtype)

    @staticmethod
    def _report(
        value: Tensor, exact: Tensor, near: Tensor, allowed: Tensor, bad: Tensor, name: str, dtype: torch.dtype
    ) -> None:
        excess = torch.where(bad, ((value - exact).abs() / allowed).nan_to_num(nan=math.inf), torch.zeros_like(allowed))
        at = tuple(torch.unravel_index(excess.argmax(), excess.shape))
        spot = [int(k) for k in at]
        v, e, allow = value[at].item(), exact[at].item(), float(allowed[at])
        off = abs(v - e) if not math.isnan(abs(v - e)) else math.nan
        extent = f"the {name} is wrong in {int(bad.sum())} of {bad.numel()} elements"
        how = f": off by {off:.3g} where {allow:.3g} is allowed" if math.isfinite(off) else ""
        overflows = math.isfinite(abs(v)) != math.isfinite(abs(e))
        if overflows and math.isfinite(abs(e)):
            how = f": {v} where the reference is finite"
        elif not math.isfinite(abs(e)):
            how = f": {v:.6g} where the reference is {e}"
        found = Finding(f"{extent}{how}", index=spot, expected=f"{e:.9g}", got=f"{v:.9g}", shape=value.shape)
        found.overflows, found.few = overflows, int(bad.sum()) <= max(2, bad.numel() // 100)
        raise found


def comparable(got: Tensor, shape: torch.Size, dtype: torch.dtype, name: str) -> None:
    """Raise Finding unless a tensor has the reference's shape and dtype."""
    if got.dtype != dtype:
        raise Finding(f"{name} is {spell(got.dtype)}, the reference gives {spell(dtype)}")
    if got.shape != shape:
        raise Finding(f"{name} has shape {spell(got.shape)}, the reference gives {spell(shape)}")


def _alike(got: Results, also: Callable[[], Results]) -> bool:
    """Whether results are, to a few units in the last place, those of another computation."""
    try:
        others = also()
    except Exception:
        return False
    for g, o in zip(got, others, strict=True):
        if g is None or o is None or g.dtype != o.dtype or g.shape != o.shape:
            if g is not o:
                return False
            continue
        if not (g.dtype.is_floating_point or g.dtype.is_complex):
            if not torch.equal(g, o):
                return False
            continue
        value, target = _double(g.detach()), _double(o.detach())
        allowed = units(g.dtype) * target.abs().nan_to_num(0, 0, 0) + least(g.dtype)
        if not bool(within(value, target, allowed, g.dtype).all()):
            return False
    return True


def _double(t: Tensor) -> Tensor:
    return t.to("cpu", torch.complex128 if t.dtype.is_complex else torch.float64)


def _shape(t: Tensor | None) -> Any:
    return None if t is None else t.shape


def rebuilt(sample: Sample, change: Callable[[Tensor], Tensor]) -> Sample:
    """The sample with every tensor changed."""

    def walk(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        return [walk(v) for v in value] if isinstance(value, (list, tuple)) and value else value

    return Sample(tuple(map(walk, sample.args)), {k: walk(v) for k, v in sample.kwargs.items()})


def copied(sample: Sample) -> Sample:
    """The sample in memory of its own, each tensor with the strides it had where those can be had."""
    return rebuilt(sample, copy)


def copy(t: Tensor) -> Tensor:
    """A tensor with the same values, shape and strides in memory of its own."""
    if t.layout != torch.strided or t.numel() == 0:
        return t.detach().clone()
    extent = sum((s - 1) * k for s, k in zip(t.shape, t.stride(), strict=True)) + 1
    if extent > 4 * t.numel() + FAR_APART:
        return t.detach().clone()
    around = t.storage_offset()
    whole = torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage(), 0, (around + extent,), (1,))
    return whole.clone().as_strided(t.shape, t.stride(), around)


def widened(sample: Sample) -> Sample:
    """The sample in float64 and complex128."""
    return rebuilt(sample, lambda t: widen(t) if t.dtype in NARROW else copy(t))


def narrowest(sample: Sample) -> torch.dtype:
    """The floating-point dtype of a sample's tensors with the largest rounding error."""
    found = [t.dtype for v in (*sample.args, *sample.kwargs.values()) for t in tensors(v)]
    floats = [d for d in found if d.is_floating_point or d.is_complex]
    return max(floats, key=eps, default=torch.get_default_dtype())
