"""What an operator without kernels costs over the plain function: one eager call, and compiled with Inductor.

    python benchmarks/see_through.py [--json FILE]

Each pair is timed in turns within one run, so that a noisy machine hurts both alike. The ratio is that of medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import opwright as ow
from opwright.kit.bench import machine

SIZES = {"small": 16, "large": 1 << 20}


@ow.op
def chain(x: Tensor, y: Tensor, *, a: float = 1.0) -> Tensor:
    """A chain of elementwise functions, which Inductor fuses into one loop."""
    return torch.tanh(a * x + y) * torch.sigmoid(x) - y.square()


def cases(size: int) -> dict[str, tuple[ow.Op[..., Any], tuple[Any, ...]]]:
    x, y = torch.randn(size), torch.randn(size)
    side = max(4, int(size**0.5) // 4)
    return {
        "axpby": (ow.axpby, (x, y)),
        "sigmoid": (ow.sigmoid, (x,)),
        "scale": (ow.scale, (x, 2.0)),
        "cube": (ow.cube, (x,)),
        "linear": (ow.linear, (torch.randn(side, side), torch.randn(side, side), torch.randn(side))),
        "chain": (chain, (x, y)),
    }


def time_in_turns(functions: list[Callable[[], Any]], seconds: float) -> list[float]:
    """The median time of each function, called in turns; inner loops make one reading last 50 µs or more."""
    loops = []
    for function in functions:
        for _ in range(3):
            function()
        start = time.perf_counter()
        function()
        loops.append(max(1, int(50e-6 / max(time.perf_counter() - start, 1e-7))))
    readings: list[list[float]] = [[] for _ in functions]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for function, n, found in zip(functions, loops, readings, strict=True):
            start = time.perf_counter()
            for _ in range(n):
                function()
            found.append((time.perf_counter() - start) / n)
    return [statistics.median(found) for found in readings]


def calling(function: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """A function of a caller's own, as operators are met in practice."""

    def call(*more: Any) -> Any:
        return function(*args, *more)

    return call


def training(function: Callable[..., Tensor], args: tuple[Any, ...]) -> Callable[[], Any]:
    inputs = [a.clone().requires_grad_() if isinstance(a, Tensor) else a for a in args]
    watched = [t for t in inputs if isinstance(t, Tensor)]

    def step() -> Any:
        return torch.autograd.grad(function(*inputs).sum(), watched)

    return step


def measure(seconds: float) -> list[dict[str, Any]]:
    rows = []
    for label, size in SIZES.items():
        for name, (op, args) in cases(size).items():
            torch._dynamo.reset()
            plain, seen = (torch.compile(calling(f), fullgraph=True) for f in (op.reference, op))
            torch.testing.assert_close(seen(*args), op.reference(*args))  # verified before it is timed
            pairs: dict[str, list[Callable[[], Any]]] = {
                "compiled": [calling(f, *args) for f in (plain, seen)],
                "compiled, forward+backward": [training(f, args) for f in (plain, seen)],
            }
            if label == "small":
                pairs["eager"] = [calling(f, *args) for f in (op.reference, op)]
            for way, functions in pairs.items():
                bare, ours = time_in_turns(functions, seconds)
                rows.append(
                    {"op": name, "size": label, "way": way, "plain_us": bare * 1e6, "op_us": ours * 1e6,
                     "ratio": ours / bare, "added_us": (ours - bare) * 1e6}
                )  # fmt: skip
                figures = f"{bare * 1e6:10.2f} {ours * 1e6:10.2f} {ours / bare:6.2f}"
                print(f"{name:8} {label:6} {way:27} {figures}", flush=True)
    return rows


def heading() -> dict[str, Any]:
    """What a stored result begins with: where, with what and when it was measured."""
    when = {"versions": machine.versions(), "commit": machine.commit(), "date": machine.today()}
    return {"machine": machine.machine(), **when}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each pair")
    chosen = parser.parse_args()
    print(f"{'op':8} {'size':6} {'way':27} {'plain µs':>10} {'op µs':>10} {'ratio':>6}")
    rows = measure(chosen.seconds)
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps({**heading(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
