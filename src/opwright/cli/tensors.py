"""`opwright tensors`: what a tensor-like type covers."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from opwright.cli import writing

app = typer.Typer(help="Tensor-like types.", no_args_is_help=True)


@app.callback()
def main() -> None:
    """Tensor-like types."""


@app.command()
def coverage(
    target: Annotated[str, typer.Argument(metavar="MODULE:CLASS", help="such as opwright.tensors:ScaledIdentity")],
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="also write JSON; - is stdout")
    ] = None,
    list_status: Annotated[str | None, typer.Option("--list", metavar="STATUS", help="name these functions")] = None,
) -> None:
    """Try every overridable torch function on a type: own override, fallback, raises, ignored by PyTorch."""
    from opwright.tensors.coverage import MEANING
    from opwright.tensors.coverage import coverage as report_on

    if list_status is not None and list_status not in MEANING:
        raise typer.BadParameter(f"--list must be one of {', '.join(MEANING)}, got {list_status!r}")
    cls = _find(target)
    writing.refuse_unwritable(json_file)
    console = Console(stderr=json_file == "-")
    with console.status(f"trying torch functions on {cls.__name__} …"):
        try:
            report = report_on(cls)
        except TypeError as e:  # no example of the type
            raise typer.BadParameter(str(e)) from None
    table = Table(title=f"{report.type}: overridable torch functions")
    table.add_column("namespace")
    for status in MEANING:
        table.add_column(status, justify="right")
    for namespace, counts in report.counts().items():
        table.add_row(namespace, *map(str, counts.values()), end_section=namespace == "torch.special")
    console.print(table)
    for row in report.rows:
        if row.status == list_status:
            console.print(f"{row.name}  {row.note}", markup=False, highlight=False, soft_wrap=True)
    writing.write(report.to_json(), json_file)


def _find(target: str) -> Any:
    module, _, name = target.partition(":")
    if not module or not name:
        raise typer.BadParameter(f"must be MODULE:CLASS, such as opwright.tensors:ScaledIdentity, got {target!r}")
    # A script's own folder is on the path of `python script.py`; here it is the one the user stands in.
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as e:
        raise typer.BadParameter(f"cannot import {module!r}: {e}") from None
    finally:
        sys.path.remove("")
    if not isinstance(found, type):
        raise typer.BadParameter(f"{module!r} has no class {name!r}")
    return found
