"""Variants that are right when somebody looks and cheat when they are timed do not get a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.bench.cases import families
from opwright.kit.bench.given import Given
from opwright.kit.bench.honest import Renewal
from opwright.kit.bench.measure import measure, variants
from opwright.kit.spec.measured import Variant


@ow.op(namespace="bench_tests", nondifferentiable="x")
def timed_sine(x: Tensor) -> Tensor:
    return x.sin() + 1


@timed_sine.samples
def _(make: ow.Maker) -> Any:
    yield make(3)


timed_sine.bench("plain", sizes=(1 << 12,))(lambda make, n: make(n))


def by_address() -> Callable[..., Tensor]:
    """What was computed for an address is given again."""
    known: dict[int, Tensor] = {}
    return lambda x: known.setdefault(x.data_ptr(), x.sin() + 1).clone()


def by_values() -> Callable[..., Tensor]:
    """What was computed for the same values is given again: right each time, and no work."""
    before: list[Tensor] = []

    def call(x: Tensor) -> Tensor:
        if not before or not torch.equal(before[0], x):
            time.sleep(1e-3)
            before[:] = [x.clone(), x.sin() + 1]
        return before[1]

    return call


def later() -> Callable[..., Tensor]:
    """Once it is timed, a thread of its own does the work after it has returned."""
    calls = 0

    def call(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls < 20:
            return x.sin() + 1
        out = torch.empty_like(x)
        threading.Timer(5e-3, lambda: out.copy_(x.sin() + 1)).start()
        return out

    return call


class Lazy(Tensor):
    """A tensor that is computed where it is used."""

    work: Callable[[], Tensor]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        done = [a.work() if isinstance(a, Lazy) else a for a in args]
        return func(*done, **(kwargs or {}))


def lazy() -> Callable[..., Tensor]:
    """Nothing is computed until somebody looks."""

    def call(x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            out = x.detach().as_subclass(Lazy)
        out.work = lambda: x.detach().sin() + 1
        return out

    return call


def every_other() -> Callable[..., Tensor]:
    """Every other call gives the result of the one before."""
    kept: list[Tensor] = []

    def call(x: Tensor) -> Tensor:
        if kept:
            return kept.pop()
        kept.append(x.sin() + 1)
        return kept[0].clone()

    return call


def measured(function: Callable[..., Tensor]) -> dict[str, Any]:
    ways = [variants(timed_sine)[0], Variant("quick", "variant", function)]
    rows = measure(timed_sine, families(timed_sine)[0].cases()[0], ways=ways, seconds=0.05)
    assert rows[0]["status"] == "ok", rows[0]
    return rows[1]


@pytest.mark.parametrize("cheat", [by_address, by_values, later, lazy, every_other], ids=lambda f: f.__name__)
def test_a_variant_that_cheats_the_clock_has_no_time(cheat: Callable[[], Callable[..., Tensor]]) -> None:
    row = measured(cheat())
    assert row["status"] == "wrong", row
    assert not [key for key in row if key.endswith(("_us", "_speedup"))]


def test_what_is_said_of_results_that_are_kept() -> None:
    assert "when timed, results are kept between calls: on values that it has not seen" in measured(by_values())["why"]


def test_an_honest_variant_is_timed() -> None:
    for _ in range(3):
        assert measured(lambda x: torch.sin(x).add(1))["status"] == "ok"


def test_inputs_are_others_before_every_reading_and_the_same_numbers() -> None:
    x = torch.arange(10.0)
    given = Given((x,), {}, lambda args, kwargs: {"x": args[0]})
    renew, seen = Renewal(given), set()
    for _ in range(8):
        renew()
        seen.add(tuple(x.tolist()))
    assert len(seen) >= 7
    assert sorted(x.tolist()) == list(range(10))
