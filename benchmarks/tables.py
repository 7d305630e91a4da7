"""Writes the tables of docs/gradients.md from benchmarks/results/autograd.json.

python benchmarks/tables.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "gradients.md"
STORED = ROOT / "benchmarks" / "results" / "autograd.json"
WAYS = ("call", "recorded", "forward+backward")


def tables(stored: dict[str, Any]) -> dict[str, str]:
    """The tables by the name that the page gives them."""
    costs = ["| operator | call | recorded | f+b | in Python: call | recorded | f+b |", "|---|---|---|---|---|---|---|"]
    for name in stored["costs"]["node"]:
        figures = [stored["costs"][who][name][way] for who in ("node", "python") for way in WAYS]
        costs.append(f"| {name} | " + " | ".join(f"{f:.1f}" for f in figures) + " |")
    ratios = ["| | the other | ours | ratio |", "|---|---|---|---|"]
    for row in stored["rows"]:
        ratios.append(f"| {row['figure']} | {row['other_us']:.1f} | {row['op_us']:.1f} | {row['ratio']:.2f} |")
    versions = stored["versions"]
    where = f"{stored['machine']['cpu']}, torch {versions['torch']}, Python {versions['python']}, {stored['date']}."
    return {"costs": "\n".join(costs), "ratios": "\n".join(ratios), "where": where}


def fill(text: str, stored: dict[str, Any]) -> str:
    """The page with its tables as the stored results have them."""
    for name, table in tables(stored).items():
        pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end -->)"
        text, found = re.subn(pattern, lambda m, table=table: m[1] + table + m[2], text, flags=re.DOTALL)  # type: ignore[misc]
        assert found == 1, name
    return text


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), json.loads(STORED.read_text())), encoding="utf-8")
