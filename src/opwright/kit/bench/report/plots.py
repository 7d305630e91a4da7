"""The pictures of a report, drawn from rows: bars, roofline, sizes, memory. Each is a figure that speaks for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opwright.kit.bench.limits import Limits
from opwright.kit.bench.report.axes import HEIGHT, WIDTH, across, apart, frame, mark, upward
from opwright.kit.bench.report.html import Html, el
from opwright.kit.bench.units import spell_bytes, spell_case, spell_rate, spell_share, spell_us
from opwright.kit.spec.measured import spell_size

Row = dict[str, Any]
SHAPES = {"reference": 0, "compiled": 1, "operator": 2, "variant": 3, "rival": 3}


def style(row: Row, rows: Sequence[Row]) -> str:
    """The class that colours a variant, the same in every figure of an operator."""
    others = [r["variant"] for r in rows if r["kind"] == row["kind"]]
    place = list(dict.fromkeys(others)).index(row["variant"]) if row["kind"] in ("rival", "variant") else 0
    return f"series k-{row['kind']}" + (f" n{place % 3}" if place else "")


def figure(title: str, note: str, *body: Any, class_: str = "") -> Html:
    """A figure with a caption."""
    caption = el("figcaption", el("strong", title), " ", el("span", note, class_="note"))
    return el("figure", caption, *body, class_=f"plot {class_}".strip())


def bars(rows: Sequence[Row], which: str, title: str) -> Html | None:
    """How long each variant takes, as bars with their spread; what is wrong has words in the place of a bar."""
    timed = [r for r in rows if r.get(f"{which}_us")]
    if not timed:
        return None
    longest = max(r[f"{which}_us"]["p80"] for r in timed)
    items = []
    for row in rows:
        name = el("span", row["variant"], class_="who")
        took = row.get(f"{which}_us")
        if row["status"] != "ok":
            said = el("span", f"{row['status']}: {row['why']}", class_="failed")
            items.append(el("li", name, said, class_=style(row, rows)))
            continue
        if took is None:
            continue
        low, middle, high = (100 * took[p] / longest for p in ("p20", "p50", "p80"))
        verdict = "the baseline" if row["kind"] == "reference" else row[f"{which}_speedup"]["verdict"]
        tone = "good" if "faster" in verdict else "bad" if "slower" in verdict else "even"
        tip = (
            f"{row['variant']}: {spell_us(took['p50'])}, 20 to 80% of readings between {spell_us(took['p20'])} and "
            f"{spell_us(took['p80'])}, of {row[f'{which}_readings']}"
        )
        host = row.get(f"{which}_host_us")
        if host is not None:
            tip += f"; host {spell_us(host)} a call"
        bar = el(
            "span",
            el("span", class_="fill", style=f"width:{middle:.1f}%"),
            el("span", class_="whisker", style=f"left:{low:.1f}%;width:{max(high - low, 0.3):.1f}%"),
            class_="bar",
            aria_hidden="true",
        )
        value = el("span", spell_us(took["p50"]), class_="value")
        other = None if row["same"] else el("span", "another function, for scale", class_="verdict even")
        said = other or el("span", verdict, class_=f"verdict {tone}")
        busy = " is-busy" if row["busy"] else ""
        items.append(el("li", name, bar, value, said, class_=style(row, rows) + busy, data_tip=tip))
    return figure(title, "median, and 20–80% of readings", el("ul", *items, class_="bars"))


def memory(rows: Sequence[Row]) -> Html | None:
    """What each variant keeps for the backward, and its peak."""
    found = [r for r in rows if r.get("forward_peak_bytes") is not None]
    kinds = [("kept_bytes", "kept"), ("forward_peak_bytes", "peak forward")]
    kinds += [("forward_backward_peak_bytes", "peak fwd + bwd")]
    most = max((r.get(k) or 0 for r in found for k, _ in kinds), default=0)
    if not most:
        return None
    items = []
    for row in found:
        lines = []
        for key, label in kinds:
            if row.get(key) is None:
                continue
            fill = el("span", class_="fill", style=f"width:{100 * row[key] / most:.1f}%")
            bar = el("span", fill, class_="bar thin", aria_hidden="true")
            value = el("span", spell_bytes(row[key]), class_="value")
            lines.append(el("div", el("span", label, class_="label"), bar, value, class_="line"))
        who = el("span", row["variant"], None if row["same"] else el("span", "another function", class_="why"))
        items.append(el("li", el("div", who, class_="who"), el("div", *lines), class_=style(row, rows)))
    return figure(
        "Memory", "kept for the backward, and at the peak beyond the inputs", el("ul", *items, class_="weights")
    )


def ran(row: Row) -> Html:
    """What a call of the operator ran, rung by rung, and why."""
    steps = [
        (el("dt", step["name"]), el("dd", el("strong", step["runs"]), el("span", step["why"], class_="why")))
        for step in row["steps"]
    ]
    return figure("What ran", "as ow.explain says", el("dl", *steps, class_="steps"), class_="ran")


def sweep(rows: Sequence[Row], family: str) -> Html | None:
    """How time grows with size, a line for each variant, and the machine's limit below them."""
    timed = [r for r in rows if r.get("forward_us") and r["size"]]
    sizes = sorted({r["size"] for r in timed})
    if len(sizes) < 3:
        return None
    limits = {r["size"]: r["forward_limit_us"] for r in timed if r.get("forward_limit_us")}
    x = across(sizes)
    floor = min(r["forward_us"]["p50"] for r in timed)
    # A limit far below every reading would flatten the lines that matter.
    shown = {n: us for n, us in limits.items() if us > floor / 30}
    y = upward([r["forward_us"]["p50"] for r in timed] + list(shown.values()))
    parts = frame(x, y, [(n, spell_case(spell_size(n))) for n in sizes], "time a call", "size n", spell_us)
    if len(shown) > 1:
        line = " ".join(f"{x.place(n)},{y.place(us)}" for n, us in sorted(shown.items()))
        parts.append(el("polyline", el("title", "the machine's limit"), class_="limit", points=line))
    for name in dict.fromkeys(r["variant"] for r in rows):
        mine = sorted((r for r in timed if r["variant"] == name), key=lambda r: r["size"])
        if not mine:
            continue
        line = " ".join(f"{x.place(r['size'])},{y.place(r['forward_us']['p50'])}" for r in mine)
        points = []
        for r in mine:
            verdict = "" if r["kind"] == "reference" else f", {r['forward_speedup']['verdict']}"
            verdict = verdict if r["same"] else ", another function"
            tip = f"{name}, n = {spell_case(spell_size(r['size']))}: {spell_us(r['forward_us']['p50'])}{verdict}"
            at = x.place(r["size"]), y.place(r["forward_us"]["p50"])
            points.append(mark(SHAPES[r["kind"]], *at, data_tip=tip))
        group = el("polyline", class_="line", points=line), points
        parts.append(el("g", *group, class_=style(mine[0], rows), data_series=name))
    label = f"Time against size for {family}. Arrow keys walk the points; the table below holds the same figures."
    note = "forward" + ("; dashed: the machine's limit" if len(shown) > 1 else "")
    return figure(f"How time grows: {family}", note, _legend(rows), _chart(parts, label))


def roofline(rows: Sequence[Row], limits: Limits) -> Html | None:
    """How near each variant comes to what the machine could do, for what the operator must do at least."""
    points = []
    for row in rows:
        for which in ("forward", "forward_backward"):
            if row.get(f"{which}_fraction") and row.get(f"{which}_flops"):
                flops, moved = row[f"{which}_flops"], row[f"{which}_bytes"]
                points.append((row, which, flops / moved, flops / row[f"{which}_us"]["p50"] * 1e6))
    peak = limits.gemm.get(rows[0]["dtype"]) if rows else None
    if not points or not limits.copy:
        return None
    moved = max(row[f"{which}_bytes"] for row, which, _, _ in points)
    bandwidth = limits.bandwidth(moved)
    peak = peak or max(rate for *_, rate in points) * 4
    ridge = peak / bandwidth
    intensities = [i for _, _, i, _ in points]
    x = across([min(*intensities, ridge) / 4, max(*intensities, ridge) * 4])
    lowest = min(rate for *_, rate in points) / 2
    y = upward([lowest, peak * 1.3])
    left, right = 10**x.low, 10**x.high
    foot = max(left, 10**y.low / bandwidth)
    roof = [(foot, foot * bandwidth), (ridge, peak), (right, peak)]
    ticks = [(t, f"{t:g}") for t in x.ticks(5)]
    parts = frame(x, y, ticks, "FLOP/s", "FLOP a byte moved", lambda v: spell_rate(v, "").strip())
    line = " ".join(f"{x.place(a)},{y.place(b)}" for a, b in roof)
    parts.append(el("polyline", class_="roof", points=line))
    half = (foot * ridge) ** 0.5
    for text, at, up in (
        (f"GEMM {spell_rate(peak, 'FLOP/s')}", WIDTH - 18, y.place(peak)),
        (f"copy {spell_rate(bandwidth, 'B/s')}", x.place(half) - 10, y.place(half * bandwidth)),
    ):
        parts.append(el("text", text, class_="tag", x=at, y=up - 6, text_anchor="end"))
    shown = apart([(x.place(intensity), y.place(rate)) for *_, intensity, rate in points])
    for name in dict.fromkeys(row["variant"] for row, *_ in points):
        marks = []
        mine = [(*p, at) for p, at in zip(points, shown, strict=True) if p[0]["variant"] == name]
        for row, which, intensity, rate, at in mine:
            share = row[f"{which}_fraction"]
            said = which.replace("_", " + ")
            tip = f"{name}, {said}: {spell_rate(rate, 'FLOP/s')}, {spell_share(share)} of the limit"
            hollow = which != "forward"
            if at != (true := x.place(intensity)):  # moved aside: a line leads to where it belongs
                height = y.place(rate)
                marks.append(el("line", class_="leader", x1=true, x2=at, y1=height, y2=height))
            marks.append(mark(SHAPES[row["kind"]], at, y.place(rate), hollow=hollow, data_tip=tip))
        parts.append(el("g", *marks, class_=style(mine[0][0], rows), data_series=name))
    label = "Roofline: work a second against FLOP a byte. Arrow keys walk the points; the table below holds the shares."
    chart = _chart(parts, label)
    return figure(
        "How near to the machine’s limit",
        "filled: forward; hollow: forward + backward; points that would hide each other stand side by side",
        _legend(rows),
        chart,
    )


def _chart(parts: list[Html], label: str) -> Html:
    return el(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
        role="group",
        aria_roledescription="chart",
        aria_label=label,
        tabindex="0",
        class_="chart",
    )


def _legend(rows: Sequence[Row]) -> Html:
    seen: dict[str, Row] = {r["variant"]: r for r in rows if r["status"] == "ok" and r.get("forward_us")}
    buttons = []
    for name, row in seen.items():
        icon = el("svg", mark(SHAPES[row["kind"]], 7, 7), viewBox="0 0 14 14", class_="key", aria_hidden="true")
        other = None if row["same"] else " (another function)"
        buttons.append(
            el(
                "button",
                icon,
                name,
                other,
                type="button",
                aria_pressed="true",
                data_toggle=name,
                class_=style(row, rows),
            )
        )
    return el("div", *buttons, class_="legend", role="group", aria_label="show or hide")
