"""Logarithmic axes and the frame of a plot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from opwright.kit.bench.report.html import Html, el

WIDTH, HEIGHT = 480.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 26.0, 42.0


class LogAxis:
    """Places positive values between two ends of a line.

    >>> axis = LogAxis([1, 1000], 0, 300, room=0)
    >>> axis.place(10), axis.ticks()
    (100.0, [1.0, 10.0, 100.0, 1000.0])
    """

    def __init__(self, values: Sequence[float], start: float, end: float, *, room: float = 0.08) -> None:
        low, high = math.log10(min(values)), math.log10(max(values))
        if high - low < 0.6:  # a lone value stands in the middle of a decade
            low, high = (low + high) / 2 - 0.5, (low + high) / 2 + 0.5
        pad = (high - low) * room
        self.low, self.high = low - pad, high + pad
        self.start, self.end = start, end

    def place(self, value: float) -> float:
        """Where a value stands."""
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, most: int = 6) -> list[float]:
        """Powers of ten within the axis; with few of those, twos and fives between them."""
        first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
        found = [10.0**p for p in range(first, last + 1)]
        if len(found) < 3:
            more = [m * 10.0**p for p in range(first - 1, last + 1) for m in (1, 2, 5)]
            return [t for t in more if self.low <= math.log10(t) <= self.high]
        step = math.ceil(len(found) / most)
        return found[::step]


def frame(
    x: LogAxis,
    y: LogAxis,
    x_ticks: Sequence[tuple[float, str]],
    y_name: str,
    x_name: str,
    spell_y: Callable[[float], str],
) -> list[Html]:
    """Grid lines, the values on them, and what the axes mean."""
    found = []
    for value in y.ticks():
        at = y.place(value)
        found.append(el("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at))
        found.append(el("text", spell_y(value), class_="tick", x=LEFT - 8, y=at + 4, text_anchor="end"))
    for value, text in x_ticks:
        at = x.place(value)
        found.append(el("line", class_="grid", x1=at, x2=at, y1=TOP, y2=HEIGHT - BOTTOM))
        found.append(el("text", text, class_="tick", x=at, y=HEIGHT - BOTTOM + 17, text_anchor="middle"))
    found.append(el("text", x_name, class_="axis", x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 6, text_anchor="middle"))
    found.append(el("text", y_name, class_="axis", x=4, y=12))
    return found


def across(values: Sequence[float]) -> LogAxis:
    """The axis from left to right."""
    return LogAxis(values, LEFT, WIDTH - RIGHT, room=0.05)


def upward(values: Sequence[float]) -> LogAxis:
    """The axis from the bottom to the top."""
    return LogAxis(values, HEIGHT - BOTTOM, TOP)


def mark(shape: int, x: float, y: float, *, hollow: bool = False, **attributes: object) -> Html:
    """A point. Its shape tells series apart where colours do not."""
    style = "mark hollow" if hollow else "mark"
    r = 5.0
    if shape % 4 == 0:
        return el("circle", class_=style, cx=x, cy=y, r=r, **attributes)
    if shape % 4 == 1:
        return el("rect", class_=style, x=x - r + 0.5, y=y - r + 0.5, width=2 * r - 1, height=2 * r - 1, **attributes)
    corners = [(0, -6), (6, 0), (0, 6), (-6, 0)] if shape % 4 == 2 else [(0, -6), (6, 5), (-6, 5)]
    points = " ".join(f"{round(x + dx, 1)},{round(y + dy, 1)}" for dx, dy in corners)
    return el("polygon", class_=style, points=points, **attributes)


def apart(points: Sequence[tuple[float, float]], gap: float = 13.0) -> list[float]:
    """Where points go from left to right so that none hides another: those in each other's way step aside.

    >>> apart([(100.0, 50.0), (100.0, 52.0), (101.0, 51.0), (100.0, 90.0)])
    [100.0, 113.0, 88.0, 100.0]
    """
    placed: list[tuple[float, float]] = []
    for x, y in points:
        for step in range(2 * len(points) + 1):
            at = x + gap * ((step + 1) // 2) * (1 if step % 2 else -1)
            if all(abs(at - a) >= gap - 2 or abs(y - b) >= gap - 2 for a, b in placed):
                break
        placed.append((at, y))
    return [at for at, _ in placed]
