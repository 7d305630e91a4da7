"""No false alarm in the whole check: every property, of every operator that is right, with several seeds.

    python -P benchmarks/right.py [--device cuda] [--seeds N] [--at-once N] [--seconds S] [--json FILE] [OP …]

The operators are those of tests/awkward_ops and of the library, as in soak.py, which tries many seeds in the properties
that depend on values. On a GPU the former have no kernel, so that PyTorch's own sums, atomics and all, are held against
float64 there. What is not begun after S seconds is left out, and the stored file says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from soak import about, names, operator


def attempt(name: str, seed: int, device: str) -> dict[str, Any]:
    """One check of one operator: what it found, how many cases it took and how long."""
    import opwright as ow

    start = time.perf_counter()
    report = ow.check(operator(name), seed=seed, device=device)
    alarms = [
        {"rung": r.op, "property": r.property, "dtype": f.dtype, "sample": f.sample, "message": f.message}
        for r in report.results
        for f in r.failures
    ]
    properties = len({r.property for r in report.results if r.cases})
    cases = sum(r.cases for r in report.results)
    seconds = round(time.perf_counter() - start, 1)
    return {"op": name, "seed": seed, "properties": properties, "cases": cases, "seconds": seconds, "alarms": alarms}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*", metavar="OP")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    chosen = given.ops or names(given.device)
    work = [(name, seed) for name in chosen for seed in range(given.seeds)]
    work.sort(key=lambda unit: unit[1] if "/" in unit[0] else 0)  # those of the library take longest, and go first
    for name in chosen:
        operator(name).build(given.device)
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + given.seconds

    def one(unit: tuple[str, int]) -> dict[str, Any] | None:
        return attempt(*unit, given.device) if time.monotonic() < end else None

    with ThreadPoolExecutor(given.at_once) as pool:  # each waits for a process
        for done, future in enumerate(as_completed([pool.submit(one, unit) for unit in work]), 1):
            if (row := future.result()) is None:
                continue
            rows.append(row)
            for alarm in row["alarms"]:
                print(json.dumps({"op": row["op"], "seed": row["seed"], **alarm}), flush=True)
            told = f"{row['op']}, seed {row['seed']}, {row['cases']} cases, {row['seconds']} s"
            print(f"{done} of {len(work)}: {told}", file=sys.stderr)
            if given.json is not None:
                result = {
                    **about(), "device": given.device, "seeds": given.seeds, "left_out": len(work) - len(rows),
                    "alarms": sum(len(r["alarms"]) for r in rows),
                    "rows": sorted(rows, key=lambda r: (r["seed"], chosen.index(r["op"]))),
                }  # fmt: skip
                given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    alarms = sum(len(row["alarms"]) for row in rows)
    cases, left = sum(row["cases"] for row in rows), len(work) - len(rows)
    print(f"{alarms} alarms in {cases} cases, {len(chosen)} operators, {given.seeds} seeds; {left} checks left out")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
