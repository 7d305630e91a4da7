"""Operators with their CPU kernels against PyTorch's best spelling, called as a user calls them, under inference mode.

    python benchmarks/calls.py [--json FILE] [--sweep]

Each pair is timed in turns within one run; the ratio is that of medians. Verified before it is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import opwright as ow
from opwright.kit.dispatch import native

sys.path.insert(0, str(Path(__file__).parent))
from see_through import heading, time_in_turns

Pair = tuple[Callable[[], Any], Callable[[], Any]]


def cases() -> dict[str, Pair]:
    x, y, g = torch.randn(1 << 16), torch.randn(1 << 16), torch.randn(1 << 16)
    square, other = torch.randn(256, 256), torch.randn(256, 256)
    wide = torch.randn(256, 512)
    rows, weight, bias = torch.randn(512, 1024), torch.randn(1024, 1024), torch.randn(1024)
    result = torch.sigmoid(x)
    sigmoid_backward = torch.ops.opwright.sigmoid_backward
    cube_backward = torch.ops.opwright.cube_backward
    return {
        "axpby contiguous": (lambda: ow.axpby(x, y, a=2), lambda: torch.add(y, x, alpha=2)),
        "axpby transposed": (lambda: ow.axpby(square.t(), other, a=2), lambda: torch.add(other, square.t(), alpha=2)),
        "axpby sliced": (lambda: ow.axpby(wide[:, :256], other, a=2), lambda: torch.add(other, wide[:, :256], alpha=2)),
        "sigmoid": (lambda: ow.sigmoid(x), lambda: torch.sigmoid(x)),
        "sigmoid backward": (
            lambda: sigmoid_backward(g, result),
            lambda: torch.ops.aten.sigmoid_backward(g, result),
        ),
        "cube": (lambda: ow.cube(x), lambda: x * x * x),
        "cube backward": (lambda: cube_backward(g, x), lambda: 3 * g * (x * x)),
        "linear 512x1024x1024": (
            lambda: ow.linear(rows, weight, bias),
            lambda: torch.nn.functional.linear(rows, weight, bias),
        ),
    }


def sweep() -> dict[str, Pair]:
    found: dict[str, Pair] = {}
    for power in range(0, 25, 2):
        x, y = torch.randn(1 << power), torch.randn(1 << power)
        found[f"axpby 2^{power}"] = (
            lambda x=x, y=y: ow.axpby(x, y, a=2),  # type: ignore[misc]
            lambda x=x, y=y: torch.add(y, x, alpha=2),  # type: ignore[misc]
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sweep", action="store_true", help="axpby over sizes as well")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each pair")
    chosen = parser.parse_args()
    rows = []
    print(f"router: {native.available() or 'C++'}")
    print(f"{'case':24} {'torch µs':>10} {'opwright µs':>12} {'ratio':>6}")
    with torch.inference_mode():
        for name, (ours, theirs) in (cases() | (sweep() if chosen.sweep else {})).items():
            torch.testing.assert_close(ours(), theirs())
            torch_s, ours_s = time_in_turns([theirs, ours], chosen.seconds)
            rows.append({"case": name, "torch_us": torch_s * 1e6, "op_us": ours_s * 1e6, "ratio": ours_s / torch_s})
            print(f"{name:24} {torch_s * 1e6:10.2f} {ours_s * 1e6:12.2f} {ours_s / torch_s:6.2f}", flush=True)
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps({**heading(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
