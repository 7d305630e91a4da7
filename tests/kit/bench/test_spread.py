"""What may be said of readings."""

from __future__ import annotations

import random

import pytest

from opwright.kit.bench.spread import Spread, speedup, verdict


def test_a_verdict_names_the_ratio_and_its_spread() -> None:
    assert verdict(Spread(1.6, 1.8, 1.9)) == "1.8× faster (1.6–1.9)"
    assert verdict(Spread(0.4, 0.5, 0.625)) == "2.0× slower (1.6–2.5)"


@pytest.mark.parametrize(
    "ratio", [Spread(0.98, 1.5, 3.0), Spread(0.5, 0.9, 1.0), Spread(1.01, 1.02, 1.03), Spread(1.002, 1.2, 1.6)]
)
def test_a_spread_that_reaches_one_is_no_difference(ratio: Spread) -> None:
    assert verdict(ratio) == "no difference"


def test_a_machine_that_slows_down_midway_does_not_change_a_ratio() -> None:
    draw = random.Random(0)
    base = [draw.uniform(0.95, 1.05) * (10 if i > 50 else 1) for i in range(100)]
    other = [b / 2 * draw.uniform(0.95, 1.05) for b in base]
    found = speedup(base, other)
    assert 1.9 < found.p20 < found.p50 < found.p80 < 2.1


def test_equal_code_is_never_called_faster() -> None:
    draw = random.Random(1)
    for _ in range(200):
        readings = [[draw.lognormvariate(0, 0.2) for _ in range(30)] for _ in range(2)]
        assert verdict(speedup(*readings)) == "no difference"


def test_no_readings_are_no_spread() -> None:
    with pytest.raises(ValueError, match="needs readings"):
        Spread.of([])
