"""Times that a program of its own would see: other values before every reading, and results that are right afterwards.

A variant may be right when it is looked at and cheat when it is timed: by results that it keeps between calls, work
that it leaves for later or to another stream, or an object that computes when somebody asks it.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.bench.given import Given
from opwright.kit.bench.timers import Call
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import Finding
from opwright.kit.truth.whole import Named, Whole

TIMES = 15
KEPT, LEAST = 4.0, 30e-6
"""How many times as long a call may take on values that it has not seen, and seconds that do not matter."""
SLEEP = 20_000_000
"""Cycles of a GPU in which a call is long under way."""


class Renewal:
    """Two elements of the first tensor change places at each call: whoever keeps results by their inputs, however
    exactly, has not seen these."""

    def __init__(self, given: Given) -> None:
        found = [t for value in (*given.args, *given.kwargs.values()) for t in tensors(value)]
        fits = (t for t in found if t.is_floating_point() and t.numel() > 1 and t.is_contiguous())
        self.flat = next((t.detach().view(-1) for t in fits), None)
        self.random = random.Random(0)

    def __call__(self) -> None:
        if self.flat is None:
            return
        i, j = self.random.sample(range(self.flat.numel()), 2)
        before = self.flat[i].clone()
        self.flat[i] = self.flat[j]
        self.flat[j] = before


def write(given: Given, others: Given) -> list[tuple[Tensor, Tensor]]:
    """Put other values into the memory of a call's floating-point tensors; what was put where."""
    pairs = zip((*given.args, *given.kwargs.values()), (*others.args, *others.kwargs.values()), strict=True)
    found = [pair for old, new in pairs for pair in zip(tensors(old), tensors(new), strict=True)]
    put = [(o.detach(), n) for o, n in found if o.is_floating_point() and o.shape == n.shape and o.dtype == n.dtype]
    for old, new in put:
        old.copy_(new)
    return put


def refuse_lazy(function: Any, given: Given, kinds: set[type]) -> None:
    """Finding where a function gives something else than the reference, which may compute when somebody looks."""
    for strange in (t for t in tensors(_called(function, given)) if type(t) not in kinds):
        raise Finding(f"it gives a {type(strange).__name__}, which may compute when somebody looks, and no tensor")


def kinds_of(function: Any, given: Given) -> set[type]:
    """The types of what a function gives."""
    return {type(t) for t in tensors(_called(function, given))}


def _called(function: Any, given: Given) -> Any:
    fresh = given.fresh()
    with torch.no_grad():
        return function(*fresh.args, **fresh.kwargs)


def judge_again(
    function: Any, given: Given, put: Sequence[tuple[Tensor, Tensor]], truth: Whole, incoming: list[Tensor] | None
) -> None:
    """Finding where a variant is wrong for other values in the same memory, looked at as soon as it has returned, after
    one call or two with yet others there."""
    late = bool(put) and put[0][0].is_cuda
    for grads, before in ((None, 1), (None, 2), *([(incoming, 1)] if incoming is not None else [])):
        for old, new in put:
            old.copy_(new.flatten().roll(1).reshape(new.shape))
        for _ in range(before):
            with contextlib.suppress(Exception):  # these values may make no sense
                _called(function, given)
        if late:  # whatever runs on a stream that does not wait for this one finds no values
            for old, _ in put:
                old.fill_(float("nan"))
            torch.cuda.synchronize()
            private.gpu_sleep(SLEEP)
        for old, new in put:
            old.copy_(new)
        truth.judge(_taken(function, given, grads), outputs_alone=grads is None)
        if late:
            torch.cuda.synchronize()


def _taken(function: Any, given: Given, incoming: list[Tensor] | None) -> list[Named]:
    """What a function gives, copied at once."""
    seen: list[Tensor] = []

    def watched(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        seen.extend(t.detach().clone() for t in tensors(out))
        return out

    found = given.results(watched, incoming)
    return [Named(f.name, seen[i], f.is_gradient) if i < len(seen) else f for i, f in enumerate(found)]


def refuse_kept(call: Call, renew: Renewal, usual: float, baseline: Call, usual_of_baseline: float) -> None:
    """Finding where a call takes much longer on values that it has not seen; not where the reference does too. Of
    calls that are so short that several make a reading, all but the first have seen theirs."""
    if renew.flat is None or renew.flat.is_cuda:
        return  # there a reading is one call
    took, other = (min(map(partial(_once, each, renew), range(TIMES))) for each in (call, baseline))
    slower = max(1.0, other / usual_of_baseline)
    if took > KEPT * slower * usual + LEAST:
        raise Finding(
            f"results are kept between calls: on values that it has not seen a call takes {took * 1e6:.4g} µs, "
            f"not {usual * 1e6:.4g}"
        )


def _once(call: Call, renew: Renewal, _: int) -> float:
    renew()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
