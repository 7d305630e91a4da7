"""Draws the figures of the README and the documents from benchmarks/results.

python benchmarks/figures.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from opwright.kit.bench.figures import fill, picture, sizes, table
from opwright.kit.bench.results import read_all

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "docs/benchmarks.md")
PICTURES = Path("docs") / "figures"


def drawn(root: Path = ROOT) -> dict[Path, str]:
    """What every document and picture should hold."""
    results = [r for r in read_all(root / "benchmarks" / "results") if r.rows]
    figures = {
        "operators": "\n\n".join(map(table, results)),
        "sizes": "\n\n".join(filter(None, map(sizes, results))),
    }
    found = {root / name: fill((root / name).read_text(encoding="utf-8"), figures) for name in DOCUMENTS}
    # Where there are several machines, the picture in the README is of the first that has a GPU.
    chosen = sorted(results, key=lambda r: not r.machine.get("gpu"))[:1]
    for r in chosen:
        found[root / PICTURES / "speed.svg"] = picture(r)
    return found


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
