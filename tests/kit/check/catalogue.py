"""Writes the table of operators that are wrong on purpose into the documentation.

python -m tests.kit.check.catalogue
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.broken_ops import BROKEN

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = ROOT / "docs" / "checking.md"
MEASURED = ROOT / "benchmarks" / "results" / "check.json"
BEGIN, END = "<!-- broken operators -->\n", "<!-- end -->"
TOOLS = ("opcheck", "gradcheck", "gradgradcheck")


def measured() -> dict[str, Any]:
    """What `python benchmarks/check.py --json` stored."""
    found: dict[str, Any] = json.loads(MEASURED.read_text(encoding="utf-8"))
    return found


def table() -> str:
    """The table, made from the tests and from what the check and PyTorch's own tools were seen to catch."""
    results = measured()
    caught, versions = results["caught"], results["versions"]
    rows = {row["op"]: row for row in results["rows"]}
    lines = [
        f"Of {caught['operators']} operators the check rejects {caught['check']}. On the same samples",
        f"torch.library.opcheck rejects {caught['opcheck']}, torch.autograd.gradcheck {caught['gradcheck']}, "
        f"gradgradcheck {caught['gradgradcheck']}, and the three together {caught['pytorch']}.",
        f"(torch {versions['torch']}, Python {versions['python']}, {results['machine']['cpu']}, {results['date']};",
        "`python benchmarks/check.py` measures it again.)",
        "",
        "| operator | its mistake | caught by | PyTorch's tools |",
        "|---|---|---|---|",
    ]
    for b in BROKEN:
        others = [name for name in TOOLS if rows.get(b.name, {}).get(name)]
        lines.append(f"| {b.theme}/{b.name} | {b.mistake} | `{b.property}` | {', '.join(others) or '–'} |")
    return "\n".join([*lines, ""])


def page() -> str:
    """The page with the table as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {len(BROKEN)} rows into {PAGE.relative_to(ROOT)}")
