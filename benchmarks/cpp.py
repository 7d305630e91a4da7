"""What operators cost in C++: a call against at::add, and configuring and building a program against its twin.

    python benchmarks/cpp.py [--json FILE]

The program is examples/cpp with no cache but opwright's own C++, as a wheel brings it; the twin (benchmarks/cpp/twin)
has the same operators by find_package(Torch) and torch/torch.h. Both are built from scratch, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from see_through import heading

from opwright.kit.build import compile, own
from opwright.kit.cpp.project import CMAKE

HERE = Path(__file__).parent / "cpp"
EXAMPLE = HERE.parents[1] / "examples" / "cpp"
LIMITS = {"call": 1.15, "recorded": 1.15, "build": 1 / 3}


def build(source: Path, place: Path, *targets: str) -> float:
    """Seconds to configure and build a project from scratch."""
    places = [f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}", f"-Dopwright_DIR={CMAKE}"]
    options = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-DOPWRIGHT_PYTHON={sys.executable}"]
    start = time.perf_counter()
    subprocess.run(["cmake", "-S", source, "-B", place, *options, *places], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", place, "--target", *targets], check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    compile.build(own.native())  # as a wheel brings it
    rows: list[dict[str, Any]] = []

    def add(figure: str, ours: float, other: float, unit: str, limit: str) -> None:
        ratio = ours / other
        rows.append(
            {"figure": figure, "ours": ours, "other": other, "unit": unit, "ratio": ratio, "limit": LIMITS[limit]}
        )
        print(f"{figure:60} {ours:8.1f} {unit} against {other:8.1f}: {ratio:.2f} of {LIMITS[limit]:.2f}")

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        build(HERE, root / "calls", "calls")
        settings = {**os.environ, "OMP_NUM_THREADS": "1"}
        runs = [
            subprocess.run([root / "calls" / "calls"], check=True, capture_output=True, text=True, env=settings).stdout
            for _ in range(3)
        ]
        words = [line.split() for run in runs for line in run.splitlines()]
        for name, figure in (
            ("call", "a call of axpby, 16 elements"),
            ("recorded", "the same with a gradient recorded"),
        ):
            pairs = [(float(w[1]), float(w[2])) for w in words if w[0] == name]
            found = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
            add(figure, *found, "ns", name)
        ours = build(EXAMPLE, root / "ours", "train")
        other = build(HERE / "twin", root / "twin", "train")
        add("configure and build of the example from scratch", ours, other, "s", "build")
    if chosen.json:
        chosen.json.write_text(json.dumps({**heading(), "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
