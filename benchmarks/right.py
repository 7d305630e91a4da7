"""No false alarm in the whole check: every property, of every operator that is right, with several seeds.

    python -P benchmarks/right.py [--device cuda] [--seeds N] [--json FILE] [OP …]

The operators are those of tests/awkward_ops and of the library, as in soak.py, which tries many seeds in the properties
that depend on values.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
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
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    chosen = given.ops or names(given.device)
    work = [(name, seed) for seed in range(given.seeds) for name in chosen]
    rows = []
    for done, (name, seed) in enumerate(work, 1):
        rows.append(row := attempt(name, seed, given.device))
        for alarm in row["alarms"]:
            print(json.dumps({"op": name, "seed": seed, **alarm}), flush=True)
        print(f"{done} of {len(work)}: {name}, seed {seed}, {row['cases']} cases", file=sys.stderr)
        if given.json is not None:
            alarms = sum(len(r["alarms"]) for r in rows)
            result = {**about(), "device": given.device, "seeds": given.seeds, "alarms": alarms, "rows": rows}
            given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    alarms = sum(len(row["alarms"]) for row in rows)
    print(f"{alarms} alarms in {sum(row['cases'] for row in rows)} cases, {len(chosen)} operators, {given.seeds} seeds")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
