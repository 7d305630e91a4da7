"""`opwright check`: prove operators against their references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from opwright.cli import writing
from opwright.cli.choosing import Names, chosen
from opwright.kit.bench import checked, places
from opwright.kit.check.properties import NAMES
from opwright.kit.check.report import Report, Result, and_more
from opwright.kit.check.run import Stopped, run


def check(
    names: Names = None,
    device: Annotated[str, typer.Option(help="Where to run them: cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="What values, sizes and layouts are drawn from.")] = 0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="PROPERTY", help=f"One of {', '.join(NAMES)}; may be repeated.")
    ] = None,
    case: Annotated[str | None, typer.Option(metavar="ID", help="The one case to run, as a failure names it.")] = None,
    thorough: Annotated[float | None, typer.Option(metavar="SECONDS", help="Go on with further seeds.")] = None,
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="Also under the compiler's sanitizers; on a GPU, compute-sanitizer.")
    ] = False,
    here: Annotated[bool, typer.Option("--here", help="In this process, for a debugger: a crash ends it.")] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Also write JSON; - is stdout.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="The results file that it is kept beside, or its folder; as `bench` has it.")
    ] = None,
) -> None:
    """Prove kernels and gradients against their references; exit 1 when a property does not hold."""
    writing.refuse_unwritable(json_file)
    console = Console(stderr=json_file == "-")
    operators = chosen(names)
    file = checked.beside(places.file_in(results or places.folder()))
    known = [checked.identify(op, file) for op in operators]  # before: somebody may edit what is being checked
    with console.status("checking …") as status:

        def progress(op: str, name: str, cases: int) -> None:
            status.update(f"checking {op}: {name}, {cases} cases")

        try:
            report = run(
                operators, device=device, seed=seed, thorough=thorough, only=only or (), case=case, sanitized=sanitize,
                here=here, progress=progress,
            )  # fmt: skip
        except Stopped as stopped:
            status.stop()
            _show(console, stopped.report, stopped=True)
            writing.write(stopped.report.to_json(), json_file)
            raise typer.Exit(130) from None
    if case is not None and report.cases == 0:
        raise ValueError(f"no case {case!r} ran; the same seed and property must be given that it was found with")
    _show(console, report)
    writing.write(report.to_json(), json_file)
    if case is None:  # a replay says nothing of the rest
        _keep(console, file, known, report)
    if not report.passed:
        raise typer.Exit(1)


def _keep(console: Console, file: Path, known: Sequence[checked.Entry], report: Report) -> None:
    """Keep what was found, for `opwright report`. Where that cannot be, the check was one all the same."""
    found = [(about, [asdict(r) for r in report.results if r.home == about["op"]]) for about in known]
    try:
        places.prepare(file)
        checked.keep(file, found, device=report.device, seed=report.seed)
    except (OSError, ValueError) as e:
        text = f"not kept for `opwright report`: {e}"
        console.print(text, style="yellow", highlight=False, soft_wrap=True, markup=False)


def _show(console: Console, report: Report, stopped: bool = False) -> None:
    table = Table("operator", "cases", "s", "property and its cases")
    skipped: dict[tuple[str, str], list[str]] = {}
    for op in dict.fromkeys(r.op for r in report.results):
        mine = [r for r in report.results if r.op == op]
        for r in mine:
            if r.skipped is not None and r.cases == 0:
                skipped.setdefault((op, r.skipped), []).append(r.property)
        words = ", ".join(_words(r) for r in mine if r.cases)
        table.add_row(op, str(sum(r.cases for r in mine)), f"{sum(r.seconds for r in mine):.1f}", words)
    console.print(table)
    for (op, reason), names in skipped.items():
        text = f"skipped  {op} {', '.join(names)}: {reason}"
        console.print(text, highlight=False, soft_wrap=True, markup=False)
    for note in report.notes:
        console.print(note, highlight=False, soft_wrap=True, markup=False)
    for f, others in report.mistakes:
        where = "" if f.index is None else f" at {f.index}: expected {f.expected}, got {f.got}"
        text = f"FAILED {f.op} {f.property}: {f.message}{where} [{f.sample}]{and_more(others)}  replay: {f.replay}"
        console.print(text, style="red", highlight=False, soft_wrap=True, markup=False)
    seconds = sum(r.seconds for r in report.results)
    colour = "green" if report.passed else "red"
    before = "stopped; " if stopped else ""
    console.print(
        f"{before}[{colour}]{report.summary}[/], seed {report.seed}, {report.device}, {seconds:.1f} s", highlight=False
    )


def _words(r: Result) -> str:
    return f"[red]{r.property} ✗ {len(r.failures)} of {r.cases}[/]" if r.failures else f"{r.property} {r.cases}"
