"""The tables of a report: the overview, all figures, the environment, and how to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opwright.kit.bench import machine as machines
from opwright.kit.bench.checked import Checked
from opwright.kit.bench.report.html import Html, el
from opwright.kit.bench.report.verdicts import badge
from opwright.kit.bench.results import Results
from opwright.kit.bench.units import spell_bytes, spell_case, spell_rate, spell_share, spell_us

Row = dict[str, Any]
TERMS = {
    "eager": "the operator’s reference, a plain PyTorch function, run as it is. Everything is compared with it.",
    "compiled": "the same function under torch.compile.",
    "opwright": "the operator with its kernels, called as a user calls it.",
    "others": "rivals and variants that the operator’s author named. One that computes another function is shown for "
    "its cost, and not compared.",
    "busy": "others were at work on the machine while this was measured: ratios bear that, times and shares do not.",
    "holds": "the check tried so many properties in so many cases, and none failed. It is tested, not proved.",
    "verdict": "the median of ratios taken in turns within one run, and where 20 to 80% of them lie. “No difference” "
    "means that the spread reaches 1.",
    "limit": "the least time in which this machine could move the operator’s bytes or do its arithmetic, from its "
    "measured copy and matrix-product speed.",
    "host": "what a call costs its caller apart from the work: on a GPU the time to enqueue it, on a CPU the smallest "
    "call.",
    "kept": "bytes that autograd keeps alive between forward and backward.",
}


def table(head: Sequence[Any], body: Sequence[Sequence[Any]], caption: str, *, numbers: Sequence[int] = ()) -> Html:
    """A table that scrolls sideways within itself where the screen is narrow."""
    columns = [el("th", h, scope="col", class_="number" if i in numbers else None) for i, h in enumerate(head)]
    lines = []
    for line in body:
        first = el("th", line[0], scope="row")
        rest = [el("td", c, class_="number" if i in numbers else None) for i, c in enumerate(line[1:], 1)]
        lines.append(el("tr", first, *rest))
    inner = el("table", el("caption", caption), el("thead", el("tr", *columns)), el("tbody", *lines))
    return el("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def overview(names: Sequence[str], rows: Sequence[Row], told: Mapping[str, Any], known: Mapping[str, Checked]) -> Html:
    """One line an operator: what it is, whether it is right, how much faster it is."""
    lines = []
    for name in names:
        equation = str(told.get(name, {}).get("doc", "")).strip().partition("\n")[0]
        mine = [r for r in rows if r["op"] == name and r["kind"] == "operator"]
        first = list(told.get(name, {}).get("families", ()))[:1]
        best = max(
            mine, key=lambda r: ([r["family"]] == first, bool(r.get("stands")), r["dtype"] == "float32"), default=None
        )
        busy = pill(best["busy"], short=True) if best and best["busy"] else None
        cells: list[Any] = [
            [el("a", name, href=f"#op-{name}"), " ", busy],
            equation,
            badge(known.get(name), short=True),
        ]
        for which in ("forward", "forward_backward"):
            cells.append(_told(best, which, name))
        share = best.get("forward_fraction") if best else None
        cells.append(spell_share(share))
        cells.append("" if best is None else f"{spell_case(best['case'])}, {best['dtype']}, {best['device']}")
        lines.append(cells)
    head = ("operator", "computes", "right?", "forward vs eager", "fwd + bwd vs eager", "of limit", "measured on")
    return el("section", el("h2", "Overview"), table(head, lines, "Operators at a glance", numbers=(5,)), id="overview")


def pill(load: float, *, short: bool = False) -> Html:
    """The mark of what was measured while others were at work."""
    said = f"busy, load {load:g}"
    return el("span", "busy" if short else said, class_="badge warn", title=said if short else None)


def _told(row: Row | None, which: str, name: str) -> Html | str:
    if row is None:
        return ""
    if row["status"] != "ok":
        return el("span", row["status"], class_="failed")
    said = row.get(f"{which}_speedup", {}).get("verdict", "")
    tone = "good" if "faster" in said else "bad" if "slower" in said else "even"
    text, bracket, spread = said.partition("(")
    parts = [el("span", text.strip()), " ", el("span", f"({spread}")] if bracket else [said]
    if tone == "bad":  # what to do about it stands there
        return el("a", *parts, class_="verdict bad", href=f"#do-{name}")
    return el("span", *parts, class_=f"verdict {tone}")


def guide() -> Html:
    """What the words mean, for who meets them first."""
    terms = [(el("dt", word), el("dd", meaning)) for word, meaning in TERMS.items()]
    return el("details", el("summary", "How to read this"), el("dl", *terms, class_="terms"))


def figures_table(rows: Sequence[Row]) -> Html:
    """Every measurement of an operator."""
    head = ["case", "variant", "forward p50", "20–80%", "vs eager", "fwd + bwd p50", "20–80%", "vs eager"]
    head += ["host", "of limit", "kept", "peak"]
    lines = []
    for r in sorted(rows, key=lambda r: (r["machine"], r["device"], r["dtype"], r["family"], r["size"] or 0)):
        case: Any = f"{spell_case(r['case'])} {r['dtype']} {r['device']}"
        if r["busy"]:
            case = [case, " ", pill(r["busy"], short=True)]
        if r["status"] != "ok":
            lines.append([case, r["variant"], el("span", f"{r['status']}: {r['why']}", class_="failed")] + [""] * 9)
            continue
        cells: list[Any] = [case, r["variant"]]
        for which in ("forward", "forward_backward"):
            took, ratio = r.get(f"{which}_us"), r.get(f"{which}_speedup")
            said = "baseline" if r["kind"] == "reference" else (ratio or {}).get("verdict", "")
            said = said if r["same"] else "another function"
            spread = "" if took is None else f"{spell_us(took['p20'])} – {spell_us(took['p80'])}"
            cells += ["" if took is None else spell_us(took["p50"]), spread, said if took else ""]
        host, share = r.get("forward_host_us"), r.get("forward_fraction")
        cells += ["" if host is None else spell_us(host), spell_share(share)]
        peak = r.get("forward_backward_peak_bytes", r.get("forward_peak_bytes"))
        cells += ["" if b is None else spell_bytes(b) for b in (r.get("kept_bytes"), peak)]
        lines.append(cells)
    return table(head, lines, "All figures", numbers=(2, 5, 8, 9, 10, 11))


def environment(results: Sequence[Results]) -> Html:
    """Machines, versions and limits."""
    parts = []
    for r in results:
        about = r.machine
        facts = [("processor", f"{about['cpu']}, {about['cores']} cores, {about['threads']} threads")]
        if about.get("gpu"):
            facts.append(("GPU", str(about["gpu"])))
        facts.append(("system", str(about.get("os", ""))))
        for run in r.runs:
            versions = ", ".join(f"{k} {v}" for k, v in run["versions"].items())
            facts.append((f"measured {run['date']}", f"{versions}, commit {run['commit'] or 'unknown'}"))
            if machines.busy(run, about):
                facts.append(("busy", f"load {run['load']:g}: others were at work; believe the ratios, not the times"))
        for device, stored in r.limits.items():
            rates = sorted(c["bytes_per_s"] for c in stored["copy"])
            if rates:
                spread = [spell_rate(rate, "B/s") for rate in dict.fromkeys((rates[0], rates[-1]))]
                facts.append((f"{device} copies", " to ".join(spread) + (", by footprint" if len(spread) > 1 else "")))
            for dtype, rate in stored["gemm_flops_per_s"].items():
                facts.append((f"{device} multiplies {dtype}", spell_rate(rate, "FLOP/s")))
        parts.append(el("h3", machines.name(about)))
        parts.append(el("dl", *[(el("dt", k), el("dd", v)) for k, v in facts], class_="facts"))
    return el("section", el("h2", "Environment"), *parts, id="environment")
