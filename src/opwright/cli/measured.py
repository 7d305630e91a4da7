"""Measurements on the terminal: a block for each case, and a line for each size."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from opwright.kit.bench.units import spell_bytes, spell_case, spell_share, spell_us
from opwright.kit.spec.measured import spell_size

Row = dict[str, Any]


def show(rows: list[Row], out: Console) -> None:
    """Cases that stand for their family in full, then how time grows with size."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["stands"] or row["status"] != "ok":
            groups.setdefault((row["op"], row["case"], row["dtype"], row["device"]), []).append(row)
    for key, mine in groups.items():
        op, case, dtype, device = key
        out.print(f"\n[bold]{escape(op)}[/]  {escape(spell_case(case))}, {dtype}, {device}", highlight=False)
        out.print(_case(mine))
    families: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["status"] == "ok" and row["size"] and row.get("forward_us"):
            families.setdefault((row["op"], row["family"], row["dtype"], row["device"]), []).append(row)
    for (op, family, dtype, device), mine in families.items():
        sizes = sorted({r["size"] for r in mine})
        if len(sizes) > 1:
            title = f"\n[bold]{escape(op)}[/]  {escape(family)}, {dtype}, {device}: forward by size"
            out.print(title, highlight=False)
            out.print(_sizes(mine, sizes))


def _table(*titles: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)  # without its name a row of numbers says nothing
    for title in titles:
        table.add_column(title, justify="left" if "eager" in title else "right", no_wrap="eager" not in title)
    return table


def _name(row: Row) -> str:
    return f"[bold]{escape(row['variant'])}[/]" if row["kind"] == "operator" else escape(row["variant"])


def _case(rows: list[Row]) -> Table:
    table = _table("forward", "vs eager", "fwd+bwd", "vs eager ", "host", "limit", "kept")
    for row in rows:
        if row["status"] != "ok":
            table.add_row(_name(row), f"[red]{row['status']}[/]", escape(row["why"]))
            continue
        cells = []
        for which in ("forward", "forward_backward"):
            took = row.get(f"{which}_us")
            said = "" if took is None or row["kind"] == "reference" else row[f"{which}_speedup"]["verdict"]
            said = said if row["same"] else "another function"
            colour = "green" if "faster" in said else "red" if "slower" in said else "dim"
            cells += ["" if took is None else spell_us(took["p50"]), f"[{colour}]{said}[/]"]
        host, share, kept = row.get("forward_host_us"), row.get("forward_fraction"), row.get("kept_bytes")
        cells.append("" if host is None else spell_us(host))
        cells.append(spell_share(share))
        cells.append("" if kept is None else spell_bytes(kept))
        table.add_row(_name(row), *cells)
    return table


def _sizes(rows: list[Row], sizes: list[int]) -> Table:
    table = _table(*(spell_case(spell_size(n)) for n in sizes))
    for name in dict.fromkeys(r["variant"] for r in rows):
        found = {r["size"]: r for r in rows if r["variant"] == name}
        cells = [spell_us(found[n]["forward_us"]["p50"]) if n in found else "" for n in sizes]
        table.add_row(_name(next(iter(found.values()))), *cells)
    return table
