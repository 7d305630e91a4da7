"""Trains LLTM and nn.LSTM on a task that needs memory, and draws both curves against time.

    python examples/remember.py [--steps 60] [--updates 400] [--out build/remember.svg]

The adding problem: every step of a sequence brings a number between 0 and 1, and two of them are marked, one in each
half. At the end the network is to say their sum. Who remembers nothing says 1 and is off by 0.167 in the square.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

import opwright as ow

Curve = list[tuple[float, float]]
"""Seconds spent on updates, and the mean squared error there."""


class Adder(nn.Module):
    """A recurrent layer and one number at the end."""

    def __init__(self, layer: nn.Module, hidden: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        _, (h_n, _) = self.layer(x)
        out: Tensor = self.head(h_n[-1])[:, 0]
        return out


def draw_batch(steps: int, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences [steps, batch, 2] of numbers and marks, and their sums."""
    numbers = torch.rand(steps, batch, generator=generator)
    marks = torch.zeros(steps, batch)
    for begin, end in ((0, steps // 2), (steps // 2, steps)):
        where = torch.randint(begin, end, (1, batch), generator=generator)
        marks.scatter_(0, where, 1.0)
    return torch.stack((numbers, marks), 2), (numbers * marks).sum(0)


def train(name: str, layer: nn.Module, options: argparse.Namespace, progress: Progress) -> Curve:
    """One network, from the same data in the same order."""
    torch.manual_seed(options.seed)
    model = Adder(layer, options.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.rate)
    generator = torch.Generator().manual_seed(options.seed)
    task = progress.add_task(name, total=options.updates, error="")
    curve: Curve = []
    spent = 0.0
    for update in range(options.updates):
        x, sums = draw_batch(options.steps, options.batch, generator)
        start = time.perf_counter()
        error = nn.functional.mse_loss(model(x), sums)
        optimizer.zero_grad()
        error.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # The first update may build a kernel.
        spent += time.perf_counter() - start if update else 0.0
        curve.append((spent, error.item()))
        progress.update(task, advance=1, error=f"{error.item():.4f}")
    return curve


def draw(curves: dict[str, Curve], title: str) -> str:
    """Both curves as an SVG: error, on a logarithmic scale, against seconds."""
    import math

    width, height, left, bottom = 720, 400, 60, 40
    longest = max(curve[-1][0] for curve in curves.values()) or 1.0
    smooth = {name: _smoothed(curve) for name, curve in curves.items()}
    errors = [e for curve in smooth.values() for _, e in curve]
    low, high = math.floor(math.log10(min(errors))), math.ceil(math.log10(max(errors)))

    def across(seconds: float) -> float:
        return left + seconds / longest * (width - left - 20)

    def upward(error: float) -> float:
        return 30 + (high - math.log10(error)) / max(high - low, 1) * (height - bottom - 30)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="13"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="18">{title}</text>',
    ]
    for power in range(low, high + 1):
        y = upward(10.0**power)
        parts.append(f'<path d="M{left} {y:.1f}H{width - 20}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for k in range(5):
        seconds = longest * k / 4
        parts.append(
            f'<text x="{across(seconds):.1f}" y="{height - bottom + 18}" text-anchor="middle">{seconds:.2g} s</text>'
        )
    for colour, (name, curve) in zip(("#0b6bcb", "#d1602b"), smooth.items(), strict=True):
        points = " ".join(f"{across(s):.1f},{upward(e):.1f}" for s, e in curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        last = curve[-1]
        parts.append(
            f'<text x="{min(across(last[0]) + 6, width - 80):.1f}" y="{upward(last[1]) - 6:.1f}" '
            f'fill="{colour}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _smoothed(curve: Curve, over: int = 10) -> Curve:
    return [
        (curve[i][0], sum(e for _, e in curve[max(0, i - over + 1) : i + 1]) / min(over, i + 1))
        for i in range(len(curve))
    ]


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="of a sequence")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build") / "remember.svg")
    options = parser.parse_args(arguments)
    console = Console()
    columns = (TextColumn("{task.description:8}"), BarColumn(), TextColumn("{task.fields[error]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        curves = {
            "LLTM": train("LLTM", ow.nn.LLTM(2, options.hidden), options, progress),
            "nn.LSTM": train("nn.LSTM", nn.LSTM(2, options.hidden), options, progress),
        }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    title = f"mean squared error over {options.steps} steps, hidden size {options.hidden}"
    options.out.write_text(draw(curves, title), encoding="utf-8")
    for name, curve in curves.items():
        console.print(f"{name:8} {_smoothed(curve)[-1][1]:.4f} after {curve[-1][0]:.1f} s", highlight=False)
    console.print(f"The plot: {options.out.resolve()}", highlight=False, soft_wrap=True)
    return {"curves": curves, "out": options.out}


if __name__ == "__main__":
    main()
