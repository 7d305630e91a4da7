"""What shipped kernels cost: the import of a package with 50 of them, the first call of one, and the wheel.

    python benchmarks/shipping.py [--json FILE] [--wheel FILE]

The package is made and its kernels are built once (some minutes); what is measured runs in processes of its own, where
there is no compiler, after the import of opwright. Figures are medians. The first objects that a program makes after
torch's import let Python's garbage collector go through all of torch's; what that costs is measured by itself.
`--wheel` is opwright's own, whose size counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from see_through import heading

from opwright.kit.scaffold import scaffold_package
from opwright.kit.ship.read import Wheel

COUNT = 50
LIMITS = {"import": 60.0, "first call": 50.0, "wheel": 20.0, "none": None}

IMPORT = """
import gc, json, time
import torch, opwright
{before}
start = time.perf_counter()
import many_ops
print(json.dumps({{"ms": (time.perf_counter() - start) * 1e3}}))
"""
DUE = """
import json, time
import torch, opwright
start = time.perf_counter()
kept = [[] for _ in range(20_000)]
print(json.dumps({"ms": (time.perf_counter() - start) * 1e3}))
"""
CALL = """
import json, time
import torch, many_ops
x = torch.ones(8)
many_ops.op1(x)  # what only the first of all calls does: opwright's own C++ is loaded
start = time.perf_counter()
y = many_ops.op2(x)
took = time.perf_counter() - start
[kernel] = many_ops.op2.kernels
assert "_opwright" in str(kernel.library.loaded), kernel.library.trouble
assert torch.allclose(y, x * torch.sigmoid(x))
print(json.dumps({"ms": took * 1e3}))
"""
FIRST = """
import json, time
import torch, many_ops
x = torch.ones(8)
start = time.perf_counter()
many_ops.op1(x)
print(json.dumps({"ms": (time.perf_counter() - start) * 1e3}))
"""


def run(program: str, root: Path) -> float:
    """Milliseconds that a program says it took, where there is no compiler."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPWRIGHT_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    environment = {**kept, "PATH": str(root), "PYTHONPATH": str(root / "many_ops" / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
    found: float = json.loads(done.stdout.splitlines()[-1])["ms"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def add(figure: str, value: float, unit: str, limit: str) -> None:
        rows.append({"figure": figure, "value": value, "unit": unit, "limit": LIMITS[limit]})
        print(f"{figure:60} {value:8.2f} {unit}" + ("" if LIMITS[limit] is None else f" of {LIMITS[limit]:g}"))

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for n in range(COUNT):
            scaffold_package(f"op{n}", root / "many_ops")
        asked = json.dumps({"cuda": False})
        command = [sys.executable, "-m", "opwright.kit.ship.fill", asked, str(root / "many_ops" / "src" / "many_ops")]
        subprocess.run(command, check=True, cwd=root, stderr=subprocess.DEVNULL)
        plain, uncollected = IMPORT.format(before=""), IMPORT.format(before="gc.disable()")
        run(plain, root)  # which writes bytecode
        rounds = [[run(each, root) for each in (plain, DUE, uncollected, CALL, FIRST)] for _ in range(chosen.rounds)]
    imports, due, without, calls, firsts = (statistics.median(column) for column in zip(*rounds, strict=True))
    add(f"import of a package with {COUNT} shipped operators", imports, "ms", "import")
    add("of that Python's collection of torch's objects, due after its import whatever follows", due, "ms", "none")
    add("the import without it", without, "ms", "import")
    add("first call of a shipped kernel", calls, "ms", "first call")
    add("first call of all, which loads opwright's own C++ too", firsts, "ms", "first call")
    if chosen.wheel:
        about = Wheel.read(chosen.wheel)
        archs = ", ".join(dict.fromkeys(arch for row in about.libraries for arch in row["arch"]))
        torches = ", ".join(dict.fromkeys(row["torch"] for row in about.own))
        add(f"opwright's wheel, for {archs} and torch {torches}", chosen.wheel.stat().st_size / 1e6, "MB", "wheel")
    if chosen.json:
        chosen.json.write_text(json.dumps({**heading(), "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
