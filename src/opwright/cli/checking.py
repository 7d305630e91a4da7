"""`opwright check`: prove operators against their references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from opwright.cli import writing
from opwright.cli.choosing import Names, chosen
from opwright.cli.judging import PANEL, judged, refuse_alone
from opwright.kit.bench import checked, places
from opwright.kit.check.judge.task import KEPT
from opwright.kit.check.judge.verdict import Judgement
from opwright.kit.check.properties import NAMES
from opwright.kit.check.report import Report, Result, and_more
from opwright.kit.check.run import Progress, Stopped, run


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
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Also search for inputs that reach every line of the kernels.")
    ] = False,
    here: Annotated[bool, typer.Option("--here", help="In this process, for a debugger: a crash ends it.")] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Also write JSON; - is stdout.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="The results file that it is kept beside, or its folder; as `bench` has it.")
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Hold a function, named the same way, against this one.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    samples: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME", help="A list of calls, or a function that draws them.", rich_help_panel=PANEL
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="A dtype to try, such as bfloat16; may be repeated.", rich_help_panel=PANEL)
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What stays as the samples have it: {', '.join(KEPT)}; may be repeated.", rich_help_panel=PANEL
        ),
    ] = None,
    gradients: Annotated[
        bool | None,
        typer.Option(
            "--gradients/--no-gradients", help="Insist on gradients, or leave them out.", rich_help_panel=PANEL
        ),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic/--no-deterministic", help="The same call gives the same bits.", rich_help_panel=PANEL
        ),
    ] = True,
    timeout: Annotated[float, typer.Option(help="Seconds that a call may take.", rich_help_panel=PANEL)] = 60.0,
    memory: Annotated[float, typer.Option(help="GiB that the function may take.", rich_help_panel=PANEL)] = 4.0,
) -> None:
    """Prove kernels and gradients against their references; exit 1 when a property does not hold.

    With --like, any function on tensors is held against another: `opwright check kernels:fast --like kernels:plain
    --samples kernels:cases`. It runs in a process of its own.
    """
    writing.refuse_unwritable(json_file)
    console = Console(stderr=json_file == "-")
    if like is not None:
        with console.status("checking …") as status:
            try:
                report: Report = judged(
                    names or [], like, samples, dtype or (), _telling(status), device=device, seed=seed,
                    thorough=thorough, only=only or (), case=case, gradients=gradients, deterministic=deterministic,
                    keep=keep or (), timeout=timeout, memory=memory,
                )  # fmt: skip
            except Stopped as stopped:
                _end(console, status, stopped, json_file)
            except (ValueError, TypeError, OSError, LookupError, RuntimeError, ImportError) as mistake:
                told = {"passed": False, "verdict": None, "error": str(mistake)}  # and no older verdict in its place
                writing.write({**told, "candidate": ", ".join(names or []), "reference": like}, json_file)
                raise
        _tell(console, report, case, json_file)
        raise typer.Exit(0 if report.passed else 1)
    refuse_alone(samples=samples, dtype=dtype, keep=keep, gradients=gradients is not None)
    operators = chosen(names)
    file = checked.beside(places.file_in(results or places.folder()))
    known = [checked.identify(op, file) for op in operators]  # before: somebody may edit what is being checked
    with console.status("checking …") as status:
        try:
            report = run(
                operators, device=device, seed=seed, thorough=thorough, only=only or (), case=case, sanitized=sanitize,
                covered=coverage, here=here, progress=_telling(status),
            )  # fmt: skip
        except Stopped as stopped:
            _end(console, status, stopped, json_file)
    _tell(console, report, case, json_file)
    if case is None:  # a replay says nothing of the rest
        _keep(console, file, known, report)
    if not report.passed:
        raise typer.Exit(1)


def _telling(status: Status) -> Progress:
    def progress(op: str, name: str, tried: str) -> None:
        status.update(escape(f"checking {op}: {name}, {tried}"))

    return progress


def _end(console: Console, status: Status, stopped: Stopped, json_file: str | None) -> NoReturn:
    """Tell what held until Ctrl-C."""
    status.stop()
    _show(console, stopped.report, stopped=True)
    writing.write(stopped.report.to_json(), json_file)
    raise typer.Exit(130) from None


def _tell(console: Console, report: Report, case: str | None, json_file: str | None) -> None:
    if case is not None and report.cases == 0:
        raise ValueError(f"no case {case!r} ran; the same seed and property must be given that it was found with")
    _show(console, report)
    writing.write(report.to_json(), json_file)


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
    if isinstance(report, Judgement) and report.verdict is not None and report.verdict.call:
        console.print(f"smallest call: {report.verdict.call}", highlight=False, soft_wrap=True, markup=False)
    seconds = sum(r.seconds for r in report.results)
    colour = "green" if report.passed else "red"
    before = "stopped; " if stopped else ""
    console.print(
        f"{before}[{colour}]{report.summary}[/], seed {report.seed}, {report.device}, {seconds:.1f} s", highlight=False
    )


def _words(r: Result) -> str:
    return f"[red]{r.property} ✗ {len(r.failures)} of {r.cases}[/]" if r.failures else f"{r.property} {r.cases}"
