"""Figures for documents, drawn from stored results: tables in Markdown, and a picture."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from opwright.kit.bench import machine
from opwright.kit.bench.report.html import Html, el
from opwright.kit.bench.results import Results
from opwright.kit.bench.units import spell_bytes, spell_case, spell_share, spell_us
from opwright.kit.spec.measured import spell_size

Row = dict[str, Any]


def fill(text: str, figures: Mapping[str, str]) -> str:
    """A document with its figures in place. A figure stands between two comments, which name it.

    >>> fill("<!-- figure: speed -->\\nold\\n<!-- end of figure -->", {"speed": "new"})
    '<!-- figure: speed -->\\nnew\\n<!-- end of figure -->'
    """

    def put(found: re.Match[str]) -> str:
        if found[1] not in figures:
            raise ValueError(f"there is no figure {found[1]!r}; the figures are {', '.join(figures)}")
        return f"<!-- figure: {found[1]} -->\n{figures[found[1]].strip()}\n<!-- end of figure -->"

    return re.sub(r"<!-- figure: (\S+) -->\n.*?<!-- end of figure -->", put, text, flags=re.DOTALL)


def standing(results: Results, dtype: str = "float32") -> dict[tuple[str, str], list[Row]]:
    """For each operator and device the rows of its first case."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in results.rows:
        first = (results.operators.get(row["op"], {}).get("families") or [row["family"]])[0]
        if row["stands"] and row["family"] == first and row["dtype"] == dtype:
            found.setdefault((row["op"], row["device"]), []).append(row)
    return found


def table(results: Results) -> str:
    """A table of a machine's operators, and a line that says what it was measured with."""
    lines = ["| operator | case | forward | against eager | fwd + bwd | against eager | of limit | kept |"]
    lines.append("|---|---|---:|---|---:|---|---:|---:|")
    for (op, device), rows in standing(results).items():
        for row in rows:
            if row["kind"] != "operator":
                continue
            where = f"{spell_case(row['case'])}, {device}"
            if row["status"] != "ok":
                lines.append(f"| `{op}` | {where} | {row['status']} | | | | | |")
                continue
            cells = []
            for which in ("forward", "forward_backward"):
                took, ratio = row.get(f"{which}_us"), row.get(f"{which}_speedup")
                cells += [spell_us(took["p50"]), ratio["verdict"]] if took and ratio else ["", ""]
            share, kept = row.get("forward_fraction"), row.get("kept_bytes")
            cells.append(spell_share(share))
            cells.append("" if kept is None else spell_bytes(kept))
            lines.append(f"| `{op}` | {where} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", source(results)])


def source(results: Results) -> str:
    """What a machine's figures were measured with, and where they are kept."""
    about, run = results.machine, results.runs[-1]
    who = " and ".join(filter(None, [about.get("gpu"), f"{about['cpu']} with {about['threads']} threads"]))
    file = f"benchmarks/results/{machine.name(about)}.json"
    when = f"torch {run['versions']['torch']}, {run['date']}"
    if machine.busy(run, about):
        when += f" (a busy machine, load {run['load']:g}: believe the ratios, not the times)"
    return f"Float32, {who}, {when}, from `{file}`; `make bench figures` makes them again."


STYLE = """
text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1f1e1c }
.soft { fill: #66625b; font-size: 12px } .line { stroke: #b9b4ab; stroke-dasharray: 3 3 }
.compiled { fill: #1d8a7d } .operator { fill: #4353c9 }
@media (prefers-color-scheme: dark) {
text { fill: #ebe9e5 } .soft { fill: #a5a19a } .line { stroke: #5c5a55 }
.compiled { fill: #4fc0b1 } .operator { fill: #95a2ff }
}
"""


def picture(results: Results, which: str = "forward_backward") -> str:
    """Bars in SVG: how many times faster than eager the operator and the compiled reference are."""
    rows: list[tuple[str, Row]] = []
    for (op, device), found in standing(results).items():
        label = op if len({d for _, d in standing(results)}) == 1 else f"{op}, {device}"
        mine = [r for r in found if r["status"] == "ok" and r.get(f"{which}_speedup")]
        rows += [(label, r) for kind in ("operator", "compiled") for r in mine if r["kind"] == kind]
    most = max([1.0, *(r[f"{which}_speedup"]["p50"] for _, r in rows)])
    left, width, height = 120, 420, 22
    one = left + width / most
    parts, y, last = [], 34.0, ""
    for label, row in rows:
        if label != last:
            y += 8 if last else 0
            parts.append(el("text", label, x=left - 10, y=f"{y + 15:.0f}", text_anchor="end"))
            last = label
        value = row[f"{which}_speedup"]["p50"]
        size = value / most * width
        parts.append(el("rect", class_=row["kind"], x=left, y=f"{y + 3:.0f}", width=f"{size:.1f}", height=16, rx=3))
        parts.append(el("text", f"{value:.2f}×", class_="soft", x=f"{left + size + 7:.1f}", y=f"{y + 15:.0f}"))
        y += height
    said = {"forward": "forward", "forward_backward": "forward + backward"}[which]
    title = f"Times as fast as eager PyTorch, {said}"
    head = [
        el("title", title),
        el("style", Html(STYLE)),
        el("text", title, x=left, y=16),
        el("line", class_="line", x1=f"{one:.1f}", x2=f"{one:.1f}", y1=28, y2=f"{y + 4:.0f}"),
    ]
    y += 12
    for x, kind, name in ((left, "operator", "opwright"), (left + 100, "compiled", "torch.compile")):
        parts.append(el("rect", class_=kind, x=x, y=f"{y:.0f}", width=12, height=12, rx=3))
        parts.append(el("text", name, class_="soft", x=x + 18, y=f"{y + 11:.0f}"))
    parts.append(el("text", "dashed: eager", class_="soft", x=left + 215, y=f"{y + 11:.0f}"))
    body = Html("\n".join(["", *head, *parts, ""]))
    box = f"0 0 620 {y + 22:.0f}"
    svg = el("svg", body, xmlns="http://www.w3.org/2000/svg", viewBox=box, width=620, role="img", aria_label=title)
    return f"{svg}\n"


def sizes(results: Results, ops: Sequence[str] = ()) -> str:
    """Forward time by size, for each operator's first family."""
    blocks = []
    for (op, device), rows in standing(results).items():
        if ops and op not in ops:
            continue
        key = op, device, "float32", rows[0]["family"]
        kin = [r for r in results.rows if tuple(r[k] for k in ("op", "device", "dtype", "family")) == key]
        kin = [r for r in kin if r.get("forward_us") and r["size"]]
        found = sorted({r["size"] for r in kin})
        if len(found) < 3:
            continue
        at = {(r["variant"], r["size"]): spell_us(r["forward_us"]["p50"]) for r in kin}
        lines = [f"| `{op}`, {device} | {' | '.join(spell_case(spell_size(n)) for n in found)} |"]
        lines.append("|---|" + "---:|" * len(found))
        for name in dict.fromkeys(v for v, _ in at):
            lines.append(f"| {name} | {' | '.join(at.get((name, n), '') for n in found)} |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
