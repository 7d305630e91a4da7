"""Draws the figures of the README and the documents from benchmarks/results.

python benchmarks/figures.py [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from opwright.kit.bench.figures import fill, picture, sizes, table
from opwright.kit.bench.results import read_all

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "docs/benchmarks.md", "docs/lltm.md")
PICTURES = Path("docs") / "figures"


def drawn(root: Path = ROOT) -> dict[Path, str]:
    """What every document and picture should hold."""
    results = [r for r in read_all(root / "benchmarks" / "results") if r.rows]
    figures = {
        "operators": "\n\n".join(map(table, results)),
        "sizes": "\n\n".join(filter(None, map(sizes, results))),
        "lltm": "\n\n".join(map(recurrent, sorted((root / "benchmarks" / "results").glob("lltm-*.json")))),
    }
    found = {root / name: fill((root / name).read_text(encoding="utf-8"), figures) for name in DOCUMENTS}
    # Where there are several machines, the picture in the README is of the first that has a GPU.
    chosen = sorted(results, key=lambda r: not r.machine.get("gpu"))[:1]
    for r in chosen:
        found[root / PICTURES / "speed.svg"] = picture(r)
    return found


def _timed(case: str, mode: str, rows: list[dict[str, Any]]) -> str:
    """A line of the table: the variants of one mode, such as "graph", by their names before the comma."""
    took = {r["variant"].partition(", ")[0]: r["p25_ms"] for r in rows if r["variant"].partition(", ")[2] == mode}
    ours = took.pop("opwright")
    against = ", ".join(f"{name} {ms / ours:.2f}" for name, ms in took.items())
    return f"| {case}{mode and f', {mode}'} | {ours:.3g} ms | {against} |"


def recurrent(file: Path) -> str:
    """The tables of one run of benchmarks/lltm.py: times, then memory and errors where it has them."""
    stored = json.loads(file.read_text(encoding="utf-8"))
    cases: dict[str, list[dict[str, Any]]] = {}
    for row in stored["figures"]:
        cases.setdefault(row["case"], []).append(row)
    lines = ["| forward and backward | opwright | times as fast as |", "|---|---:|---|"]
    others = []
    for case, rows in cases.items():
        ours = next(r for r in rows if r["variant"] == "opwright")
        rest = [r for r in rows if r is not ours]
        if "p25_ms" in ours and "f+b" in case:
            modes = {name.partition(", ")[2]: None for name in (r["variant"] for r in rows)}
            lines += [_timed(case.replace(" f+b", ""), mode, rows) for mode in modes]
        elif "bytes" in ours:
            against = ", ".join(f"{r['variant']} {r['bytes'] / 2**20:.0f} MiB" for r in rest)
            others.append(f"- {case}: {ours['bytes'] / 2**20:.0f} MiB; {against}")
        elif "error" in ours:
            others.append(f"- {case}: {ours['error']:.1e}, {ours['ratio']:.2f} of a loop of PyTorch's operators")
    about = f"{stored['machine']}, torch {stored['torch']}, {stored['date']}, from `benchmarks/results/{file.name}`."
    return "\n".join([*lines, "", *others, "", about]).replace("\n\n\n", "\n\n")


def stale(root: Path = ROOT) -> list[Path]:
    """Documents and pictures that do not show what is stored."""
    return [p for p, text in drawn(root).items() if not p.exists() or p.read_text(encoding="utf-8") != text]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say what is stale, and exit with 1 if anything is")
    options = parser.parse_args()
    for file in stale():
        print(f"{file.relative_to(ROOT)} is stale" if options.check else f"drew {file.relative_to(ROOT)}")
        if options.check:
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(drawn()[file], encoding="utf-8")
    if options.check and stale():
        sys.exit("run `make figures`")


if __name__ == "__main__":
    main()
