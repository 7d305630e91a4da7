"""The commands."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

import opwright as ow
from opwright.cli import building, checking, cpp, measuring, reporting, shipping
from opwright.cli.choosing import Names, chosen
from opwright.cli.tensors import app as tensors_app
from opwright.kit import doctor as kit_doctor
from opwright.kit import pages
from opwright.kit.dispatch import registry
from opwright.kit.doctor import cuda as doctor_cuda
from opwright.kit.scaffold import scaffold, scaffold_package

app = typer.Typer(
    help="Write a PyTorch operator once; build, prove, measure and ship it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(building.build)
app.command()(checking.check)
app.command()(building.cache)
app.command()(measuring.bench)
app.command()(reporting.report)
app.command()(shipping.wheel)
app.command()(cpp.cmake)
app.command()(cpp.loader)
app.command()(cpp.hub)
app.add_typer(tensors_app, name="tensors", help="Types that torch functions accept.")
console = Console()

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(ow.__version__)
        raise typer.Exit


@app.command("list")
def list_operators(
    names: Names = None,
    as_json: AsJson = False,
) -> None:
    """Operators, their gradients, and which have kernels where."""
    rows = [_row(op) for op in chosen(names)]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        has = [("kernels", row["kernels"]), ("gradients", row["rungs"])]
        facts = "".join(f"   {what}: {', '.join(names) or '-'}" for what, names in has)
        console.print(f"[bold]{escape(row['op'])}[/bold]{escape(facts)}", highlight=False, soft_wrap=True)
        console.print(f"  {row['schema']}", highlight=False, soft_wrap=True, markup=False)


def _row(op: ow.Op[..., Any]) -> dict[str, Any]:
    rungs = [*([op.saving_form] if op.saving_form else []), *([op.backward] if op.has_rung else [])]
    return {
        "op": op.qualname.replace("::", "."),
        "schema": op.schema,
        "rungs": [rung.name for rung in rungs],
        "kernels": sorted({f"{kernel.device}" for kernel in op.kernels}),
        "rung_kernels": {rung.name: sorted({k.device for k in rung.kernels}) for rung in rungs},
        "equation": (op.__doc__ or "").strip().partition("\n")[0],
    }


@app.command()
def explain(names: Names = None) -> None:
    """What a call of an operator runs, forward, backward and under torch.compile, and why."""
    for op in chosen(names):
        console.print(str(ow.explain(op)), highlight=False, soft_wrap=True, markup=False)


@app.command()
def new(
    name: Annotated[str | None, typer.Argument(help="The operator's name; with --package, swish by default.")] = None,
    path: Annotated[Path, typer.Option(help="The folder to put it in.")] = Path("."),
    package: Annotated[
        Path | None, typer.Option(help="Into the package of this project, which is made if it is not there.")
    ] = None,
    rows: Annotated[bool, typer.Option("--rows", help="With kernels over rows, in place of elementwise ones.")] = False,
    cuda: Annotated[bool, typer.Option("--cuda", help="With a kernel for the GPU.")] = False,
) -> None:
    """Scaffold an operator folder that works as it stands, or a package of such folders."""
    if package is not None:
        _new_in_package(name or "swish", path / package, rows, cuda)
        return
    if name is None:
        raise ValueError("name the operator: `opwright new NAME`, or a package: `opwright new --package NAME`")
    written = scaffold(name, path, rows=rows, cuda=cuda)
    for file in written:
        console.print(f"wrote {file}", highlight=False, soft_wrap=True, markup=False)
    place = shlex.quote(str(written[0].parent))
    steps = (("check", "prove kernels and gradients"), ("bench", "measure them"), ("report", "see both in a browser"))
    _show_next([(f"opwright {command} {place}", what) for command, what in steps])


def _new_in_package(name: str, project: Path, rows: bool, cuda: bool) -> None:
    for file in scaffold_package(name, project, rows=rows, cuda=cuda):
        console.print(f"wrote {file}", highlight=False, soft_wrap=True, markup=False)
    place = shlex.quote(str(project))
    install = f"pip install --no-build-isolation -e {place}"
    test, ship = f"pytest {place}", f"opwright wheel {place}"
    _show_next([(install, "to work on it"), (test, "proves every operator"), (ship, "a wheel, with the kernels in it")])


def _show_next(steps: list[tuple[str, str]]) -> None:
    width = max(len(command) for command, _ in steps)
    lines = [f"  {command:{width}}   # {what}" for command, what in steps]
    console.print("\nNext:\n" + "\n".join(lines), highlight=False, soft_wrap=True, markup=False)


@app.command()
def doctor(
    library: Annotated[Path | None, typer.Argument(help="A built library to look at, instead of the machine.")] = None,
    error: Annotated[
        str | None, typer.Option(help="An error message of the loader or of CUDA, to be explained.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What this machine can build and run, and how to fix what it cannot."""
    if error is not None:
        findings = [doctor_cuda.explain_error(error)]
    else:
        findings = kit_doctor.examine() if library is None else kit_doctor.examine_library(library)
    if as_json:
        print(json.dumps([{**vars(f), "mend": f.fix} for f in findings], indent=2))
    else:
        marks = {"ok": "[green]ok[/]", "missing": "[yellow]missing[/]", "broken": "[red]broken[/]"}
        table = Table("", "", Column("found", overflow="fold"), Column("how to fix it", overflow="fold"))
        for f in findings:
            table.add_row(f.what, marks[f.verdict], escape(f.found), escape(f.fix))
        console.print(table)
    if error is None and any(f.verdict == "broken" for f in findings):
        raise typer.Exit(1)


@app.command()
def docs(folder: Annotated[Path, typer.Argument(help="Where to write the pages.")]) -> None:
    """Write the reference page of every operator."""
    folder.mkdir(parents=True, exist_ok=True)
    written = pages.write_all([op for op in registry.operators() if op.home is op], folder)
    console.print(f"wrote {len(written)} pages to {folder}", highlight=False, soft_wrap=True, markup=False)
