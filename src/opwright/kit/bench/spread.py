"""Readings and their spread, and what may be said of two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SAME = 0.03
"""Differences below this share are not spoken of, however small the spread."""

EDGE = 0.01
"""A range that comes this near to 1 is taken to reach it."""


@dataclass(frozen=True)
class Spread:
    """The 20th, 50th and 80th percentile of readings.

    >>> Spread.of([3.0, 1.0, 2.0, 5.0, 4.0])
    Spread(p20=1.8, p50=3.0, p80=4.2)
    """

    p20: float
    p50: float
    p80: float

    @classmethod
    def of(cls, readings: Sequence[float]) -> Spread:
        """Of readings in any order."""
        if not readings:
            raise ValueError("a spread needs readings, got none")
        ordered = sorted(readings)
        return cls(*(_percentile(ordered, p) for p in (0.2, 0.5, 0.8)))

    @classmethod
    def read(cls, stored: dict[str, float]) -> Spread:
        """Of what `to_json` gave."""
        return cls(stored["p20"], stored["p50"], stored["p80"])

    def to_json(self) -> dict[str, float]:
        """As results files hold it."""
        return {"p20": _round(self.p20), "p50": _round(self.p50), "p80": _round(self.p80)}


def speedup(base: Sequence[float], other: Sequence[float]) -> Spread:
    """How many times faster `other` is than `base`, from readings taken in turns: a machine that slows down
    between two rounds slows both readings of a round, and their ratio stays.

    >>> speedup([2.0, 4.0, 2.2], [1.0, 2.0, 1.1]).p50
    2.0
    """
    return Spread.of([b / o for b, o in zip(base, other, strict=True)])


def verdict(ratio: Spread) -> str:
    """A ratio in words that respect its spread.

    >>> verdict(Spread(1.6, 1.8, 1.9)), verdict(Spread(0.45, 0.5, 0.51)), verdict(Spread(0.9, 1.1, 1.2))
    ('1.8× faster (1.6–1.9)', '2.0× slower (2.0–2.2)', 'no difference')
    """
    if (ratio.p20 < 1 + EDGE and ratio.p80 > 1 - EDGE) or abs(ratio.p50 - 1) < SAME:
        return "no difference"
    if ratio.p50 > 1:
        return f"{_times(ratio.p50)}× faster ({_times(ratio.p20)}–{_times(ratio.p80)})"
    return f"{_times(1 / ratio.p50)}× slower ({_times(1 / ratio.p80)}–{_times(1 / ratio.p20)})"


def _times(x: float) -> str:
    return f"{x:.0f}" if x >= 20 else f"{x:.1f}" if x >= 1.25 else f"{x:.2f}"


def _percentile(ordered: list[float], p: float) -> float:
    place = p * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return round(ordered[low] + (ordered[high] - ordered[low]) * (place - low), 15)


def _round(x: float) -> float:
    return float(f"{x:.5g}")
