"""Writes the table of operators that are wrong on purpose into the documentation.

python -m tests.kit.verify.catalogue
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.broken_ops import BROKEN

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = ROOT / "docs" / "checking.md"
MEASURED = ROOT / "benchmarks" / "results" / "check.json"
BEGIN, END = "<!-- broken operators -->\n", "<!-- end -->"


def table() -> str:
    """The table, made from the tests and, where it was measured, from what PyTorch's own tools catch."""
    lines = ["| operator | its mistake | caught by |", "|---|---|---|"]
    lines += [f"| {b.theme}/{b.name} | {b.mistake} | `{b.property}` |" for b in BROKEN]
    said = f"{len(BROKEN)} operators; the check rejects all of them."
    if MEASURED.is_file():
        caught = json.loads(MEASURED.read_text(encoding="utf-8"))["caught"]
        shown = ", ".join(f"{tool} {count}" for tool, count in caught.items())
        said = f"{len(BROKEN)} operators. Caught, on the same samples: {shown} (`python benchmarks/check.py`)."
    return "\n".join([said, "", *lines, ""])


def page() -> str:
    """The page with the table as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {len(BROKEN)} rows into {PAGE.relative_to(ROOT)}")
