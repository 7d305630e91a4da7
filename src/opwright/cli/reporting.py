"""`opwright report`: what was measured and checked, in one HTML file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import opwright as ow
from opwright.cli.choosing import Names, chosen
from opwright.kit.bench import checked, places
from opwright.kit.bench import results as stored
from opwright.kit.dispatch import registry

console = Console(stderr=True)


def report(
    names: Names = None,
    results: Annotated[
        list[Path] | None, typer.Option(help="Results files, or a folder of them; by default as `bench` keeps them.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What `opwright check --json FILE` wrote, in place of what it has kept."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("opwright-report.html"),
) -> None:
    """Write one HTML file from stored results, of some operators or of all: it opens from disk, without a network."""
    from opwright.kit.bench.report import write_report

    asked = {op.home.qualname for op in chosen(names)} if names else None
    given = results or [places.folder()]
    found = [r for place in given for r in stored.read_all(place)]
    for each in found if asked is not None else ():
        each.rows = [row for row in each.rows if row.get("qualname", row["op"]) in (asked or ())]
    if not any(r.rows for r in found):
        of = "" if asked is None else f" of {', '.join(sorted(asked)).replace('::', '.')}"
        raise ValueError(
            f"there are no results{of} to report on; run `opwright bench` first, or name a file with --results"
        )
    shown = {row["op"]: row.get("qualname", row["op"]) for r in found for row in r.rows}
    loaded = {op.qualname: op for op in registry.operators() if op.home is op}
    operators = {name: loaded[qualname] for name, qualname in shown.items() if qualname in loaded}
    if check is None:
        known = _kept(given, shown, operators)
    else:
        known = _given(check, shown)
    write_report(out, [r for r in found if r.rows], operators, known)
    console.print(f"wrote {out.resolve()}", highlight=False, soft_wrap=True, markup=False)


def _kept(
    given: Sequence[Path], shown: dict[str, str], operators: dict[str, ow.Op[..., Any]]
) -> dict[str, checked.Checked]:
    """What `opwright check` has kept of the operators that are shown."""
    known = {}
    for name, qualname in shown.items():
        for place in given:
            about = checked.known(place, qualname, operators.get(name))
            if about is not None:
                known[name] = about
    return known


def _given(file: Path, shown: dict[str, str]) -> dict[str, checked.Checked]:
    """What a file says that `opwright check --json` wrote."""
    from opwright.kit.bench.report.verdicts import results_of

    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        stored = None
    listed = stored.get("results") if isinstance(stored, dict) else None
    if not isinstance(listed, list) or not all(isinstance(r, dict) for r in listed):
        raise ValueError(f"{file}: is not what `opwright check --json` writes")
    found = {name: results_of(listed, name, qualname) for name, qualname in shown.items()}
    return {name: checked.Checked(results, "now", f"From {file.name}.") for name, results in found.items() if results}
