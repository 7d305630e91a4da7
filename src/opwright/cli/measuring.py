"""The commands that measure, and show what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import opwright as ow
from opwright.cli.building import chosen
from opwright.kit import register
from opwright.kit.bench import results as stored
from opwright.kit.bench.cases import families
from opwright.kit.bench.run import Asked, run
from opwright.kit.bench.units import spell_bytes, spell_us
from opwright.kit.build import cache

console = Console(stderr=True)
Names = Annotated[list[str] | None, typer.Argument(metavar="OP", help="Operators, files or folders; all if none.")]


def bench(
    names: Names = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; all there are if not given.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Such as bfloat16; may be given several times.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The first case of each operator at one size alone.")] = False,
    seconds: Annotated[float, typer.Option(help="For each pass of a case, all variants together.")] = 1.0,
    limit: Annotated[float, typer.Option(help="Seconds after which a case is given up.")] = 180.0,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Also write this run's JSON; - is stdout.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="The file that keeps results, or its folder; by default benchmarks/results.")
    ] = None,
) -> None:
    """Measure operators: verified, then timed in turns with the eager and the compiled reference and their rivals."""
    operators = measurable(names)
    asked = Asked(
        operators,
        paths=[n for n in names or () if register.find(f"opwright::{n}") is None],
        dtypes=_dtypes(dtype),
        devices=_devices(device),
        sweep=not quick,
        families=1 if quick else None,
        seconds=seconds,
        limit=limit,
    )
    found, file = _opened(results)
    with _stopping(found, file):
        number = measure(asked, found, file)
    mine = _of_run(found, number)
    if json_file == "-":
        sys.stdout.write(json.dumps(mine, indent=1) + "\n")
    elif json_file is not None:
        Path(json_file).write_text(json.dumps(mine, indent=1) + "\n", encoding="utf-8")
    out = console if json_file == "-" else Console()
    show(mine["rows"], out)
    console.print(f"kept in {file}", highlight=False, soft_wrap=True)


def measurable(names: list[str] | None) -> list[ow.Op[..., Any]]:
    """The operators to measure: those asked for, or all that have something to be measured on."""
    found = [op for op in chosen(names) if op.parent is None]
    ready = [op for op in found if families(op)]
    lacking = [op.name for op in found if op not in ready]
    if names and lacking:
        raise ValueError(
            f"{', '.join(lacking)}: there is nothing to measure on; declare cases with @op.bench, or samples"
        )
    return ready


def measure(asked: Asked, found: stored.Results, file: Path) -> int:
    """Measure with a progress bar; every case is in the file as soon as it is done."""
    total = sum(len(job.cases) for job in asked.jobs())
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    seen: set[str] = set()
    with bar:
        task = bar.add_task("starting", total=total)

        def tell(text: str) -> None:
            bar.update(task, description=text)
            case = ":".join(text.split(":")[:2])
            if not console.is_terminal and case not in seen:  # a log has no bar
                seen.add(case)
                console.print(f"measuring {case}", highlight=False, markup=False, soft_wrap=True)

        done: set[tuple[str, ...]] = set()

        def keep() -> None:
            found.save(file)
            done.update(tuple(r[k] for k in stored.KEY[:-1]) for r in found.rows if r["run"] == len(found.runs) - 1)
            bar.update(task, completed=len(done))

        return run(asked, found, tell=tell, keep=keep)


def _stopping(found: stored.Results, file: Path) -> Any:
    import contextlib

    @contextlib.contextmanager
    def guard() -> Any:
        try:
            yield
        except KeyboardInterrupt:
            if found.rows:
                found.save(file)
            console.print(f"\nstopped; what was measured so far is in {file}", highlight=False, soft_wrap=True)
            raise typer.Exit(130) from None

    return guard()


def _opened(place: Path | None) -> tuple[stored.Results, Path]:
    """The results to add to, and their file."""
    found = stored.Results.here()
    if place is None:
        folder = Path("benchmarks") / "results"
        place = folder if folder.is_dir() else cache.folder() / "results"
    file = place if place.suffix == ".json" else stored.place(found, place)
    return (stored.read(file) if file.exists() else found), file


def _of_run(found: stored.Results, number: int) -> dict[str, Any]:
    alone = stored.Results(found.machine)
    alone.limits, alone.runs = found.limits, found.runs
    alone.rows = [r for r in found.rows if r["run"] == number]
    names = {r["op"] for r in alone.rows}
    alone.operators = {name: about for name, about in found.operators.items() if name in names}
    return alone.to_json()


def _dtypes(asked: list[str] | None) -> list[str]:
    known = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
    for name in asked or ():
        if name not in known:
            raise ValueError(f"--dtype must be one of {', '.join(known)}, got {name!r}")
    return asked or ["float32"]


def _devices(asked: str | None) -> list[str]:
    if asked is None:
        return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    if asked.partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cpu or cuda, got {asked!r}")
    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch sees no CUDA device here; `opwright doctor` says more")
    return [asked]


def show(rows: list[dict[str, Any]], out: Console) -> None:
    """A table of rows, a block for each case."""
    table = Table("operator", "case", "variant", box=None, header_style="bold", pad_edge=False)
    for title in ("forward", "against eager", "fwd + bwd", "against eager", "host", "of limit", "kept"):
        table.add_column(title, justify="left" if "against" in title else "right")
    before: tuple[str, ...] = ()
    for row in rows:
        case = (row["op"], f"{row['case']} {row['dtype']} {row['device']}")
        if before and case != before:
            table.add_section()
        head = case if case != before else ("", "")
        before = case
        name = f"[bold]{escape(row['variant'])}[/]" if row["kind"] == "operator" else escape(row["variant"])
        if row["status"] != "ok":
            why = f"[red]{row['status']}[/]"
            table.add_row(*map(escape, head), name, why, escape(row["why"][:60]))
            continue
        cells = []
        for which in ("forward", "forward_backward"):
            took = row.get(f"{which}_us")
            said = "" if took is None or row["kind"] == "reference" else row[f"{which}_speedup"]["verdict"]
            colour = "green" if "faster" in said else "red" if "slower" in said else "dim"
            cells += ["" if took is None else spell_us(took["p50"]), f"[{colour}]{said}[/]"]
        host = row.get("forward_host_us")
        share = row.get("forward_fraction")
        kept = row.get("kept_bytes")
        table.add_row(
            *map(escape, head),
            name,
            *cells,
            "" if host is None else spell_us(host),
            "" if share is None else f"{share:.0%}",
            "" if kept is None else spell_bytes(kept),
        )
    out.print(table)
