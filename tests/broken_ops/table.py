"""The table of broken operators in the documentation, made from the list and from what was measured.

python -m tests.broken_ops.table
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.broken_ops import BROKEN

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "checking.md"
RESULTS = ROOT / "benchmarks" / "results" / "check.json"
BEGIN, END = "<!-- broken operators -->", "<!-- end of broken operators -->"
TOOLS = ("opcheck", "gradcheck", "gradgradcheck")


def table(measured: dict[str, Any]) -> str:
    """The section between the two marks."""
    caught = measured["caught"]
    rows = {row["op"]: row for row in measured["rows"]}
    versions = measured["versions"]
    lines = [
        f"Of {caught['operators']} operators that are wrong on purpose, the check rejects {caught['check']}; "
        f"torch.library.opcheck rejects {caught['opcheck']}, torch.autograd.gradcheck {caught['gradcheck']}, "
        f"gradgradcheck {caught['gradgradcheck']}, and all three together {caught['pytorch']}, on the same samples "
        f"({measured['machine']['cpu']}, torch {versions['torch']}, Python {versions['python']}, {measured['date']}; "
        "`python benchmarks/check.py` measures it again).",
        "",
        "| the mistake | caught by | PyTorch's tools |",
        "|---|---|---|",
    ]
    for b in BROKEN:
        found = [name for name in TOOLS if rows.get(b.name, {}).get(name)]
        lines.append(f"| {b.mistake} | {b.property} | {', '.join(found) or '–'} |")
    return "\n".join(lines)


def insert(page: str, section: str) -> str:
    """The page with the section between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name} has no place for the table: write {BEGIN} and {END} where it belongs")
    return f"{before}{BEGIN}\n\n{section}\n\n{END}{after}"


def main() -> None:
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(insert(PAGE.read_text(encoding="utf-8"), table(measured)), encoding="utf-8")


if __name__ == "__main__":
    main()
