"""Checks and measures every operator, one float32 case each, and writes the report.

python examples/demo.py [--out build/report.html]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import opwright as ow
from opwright.cli.measuring import measurable, measure
from opwright.kit.bench.checked import Checked
from opwright.kit.bench.report import write_report
from opwright.kit.bench.results import Results
from opwright.kit.bench.run import Asked
from opwright.kit.bench.units import spell_share
from opwright.kit.dispatch import registry


def check(operators: list[ow.Op[..., Any]], console: Console) -> dict[str, Checked]:
    """What the check says of each operator."""
    found = {}
    for op in operators:
        with console.status(f"checking {op.name} …"):
            found[op.name] = Checked(ow.check(op).to_json()["results"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build") / "report.html")
    parser.add_argument("--seconds", type=float, default=0.4, help="for each pass of a case")
    options = parser.parse_args()
    console = Console()
    start = time.perf_counter()
    operators = measurable(None)
    verdicts = check(operators, console)
    results = Results.here()
    folder: Path = options.out.parent
    folder.mkdir(parents=True, exist_ok=True)
    asked = Asked(operators, families=1, seconds=options.seconds, compile_sizes=False)
    measure(asked, results, folder / "demo.json")
    write_report(options.out, [results], {op.name: op for op in registry.operators() if op.home is op}, verdicts)
    console.print(table(results.rows, verdicts))
    console.print(
        f"\n{time.perf_counter() - start:.0f} s. The report: {options.out.resolve()}", highlight=False, soft_wrap=True
    )


def table(rows: list[dict[str, Any]], verdicts: dict[str, Checked]) -> Table:
    """An operator a line: whether it is right, and how fast it is against the eager reference."""
    shown = Table(
        "operator", "right?", "forward vs eager", "fwd + bwd vs eager", "of limit", box=None, padding=(0, 2, 0, 0)
    )
    for row in rows:
        if row["kind"] != "operator" or not row["stands"]:
            continue
        mine = [r for r in verdicts[row["op"]].results if r["cases"]]
        bad = sum(bool(r["failures"]) for r in mine)
        cells = [
            row["op"],
            "not checked" if not mine else f"[red]{bad} fail[/]" if bad else f"[green]{len(mine)} hold[/]",
        ]
        for which in ("forward", "forward_backward"):
            cells.append(row.get(f"{which}_speedup", {}).get("verdict", "") if row["status"] == "ok" else row["status"])
        share = row.get("forward_fraction")
        shown.add_row(*cells, spell_share(share))
    return shown


if __name__ == "__main__":
    main()
