"""What the default check takes, beside the same check of another tree.

    python benchmarks/check_time.py OTHER [--rounds N] [--json FILE] [OP …]

OTHER is the root of another checkout of opwright, such as `git worktree add OTHER COMMIT` makes; `opwright build` must
have been run in both. Each operator that both have is checked in processes of their own, in turns. What counts is
seconds of the processor, the user's and the system's, of the command and of all that it started, whoever its parent is
by then: others may use the machine too. What a tree takes is the smallest of its rounds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from see_through import heading

ROOT = Path(__file__).resolve().parent.parent
SUBREAPER = 36
"""The option of prctl(2) by which processes whose parent ended become ours, so that their seconds are counted."""


def run(tree: Path, *command: str) -> str:
    """What `opwright` of a tree prints."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "opwright", *command], cwd=tree, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{tree}: opwright {' '.join(command)} failed: {done.stderr[-500:]}")
    return done.stdout


def used() -> float:
    """Seconds of the processor that processes have used which ended by now."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def check(tree: Path, op: str, folder: Path) -> dict[str, Any]:
    """The seconds of one check, its cases, and those of each property by the clock on the wall."""
    file, before = folder / "report.json", used()
    run(tree, "check", op, "--json", str(file), "--results", str(folder / tree.name))
    seconds = used() - before
    report = json.loads(file.read_text())
    slow: dict[str, float] = {}
    for result in report["results"]:
        slow[result["property"]] = round(slow.get(result["property"], 0) + result["seconds"], 2)
    cases = sum(result["cases"] for result in report["results"])
    return {"seconds": round(seconds, 2), "cases": cases, "passed": report["passed"], "properties": slow}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("ops", nargs="*")
    chosen = parser.parse_args()
    if ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0) != 0:
        raise RuntimeError("this system does not give processes whose parent ended to us")
    trees = {"before": chosen.other.resolve(), "now": ROOT}
    known = [
        {row["op"].rpartition(".")[2] for row in json.loads(run(tree, "list", "--json"))} for tree in trees.values()
    ]
    ops = chosen.ops or sorted(op for op in set.intersection(*known) if not op.endswith("_"))  # not derived forms
    found: dict[str, dict[str, list[dict[str, Any]]]] = {op: {which: [] for which in trees} for op in ops}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(chosen.rounds):
            for op in ops:
                for which, tree in trees.items() if number % 2 else reversed(trees.items()):
                    print(f"round {number + 1}: {op}, {which}", file=sys.stderr, flush=True)
                    found[op][which].append(check(tree, op, Path(folder)))
    rows = []
    for op in ops:
        best = {which: min(tried, key=lambda t: float(t["seconds"])) for which, tried in found[op].items()}
        ratio = round(best["now"]["seconds"] / best["before"]["seconds"], 2)
        all_seconds = {which: [t["seconds"] for t in tried] for which, tried in found[op].items()}
        rows.append({"op": op, "ratio": ratio, **best, "rounds": all_seconds})
        print(f"{op:16} {best['before']['seconds']:7.2f} s  {best['now']['seconds']:7.2f} s  {ratio:.2f}")
    before, now = (sum(row[which]["seconds"] for row in rows) for which in trees)
    print(f"{'together':16} {before:7.2f} s  {now:7.2f} s  {now / before:.2f}")
    if chosen.json:
        commits = {which: _commit(tree) for which, tree in trees.items()}
        total = {"before": round(before, 2), "now": round(now, 2), "ratio": round(now / before, 3)}
        stored = {**heading(), "commits": commits, "processor_seconds": total, "rows": rows}
        chosen.json.write_text(json.dumps(stored, indent=1) + "\n")


def _commit(tree: Path) -> str:
    command = ["git", "-C", str(tree), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
