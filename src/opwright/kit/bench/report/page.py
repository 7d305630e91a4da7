"""The page: an overview, then a section for each operator, then what it was all measured with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opwright.kit.bench import machine as machines
from opwright.kit.bench.checked import Checked
from opwright.kit.bench.limits import Limits
from opwright.kit.bench.report import plots
from opwright.kit.bench.report.html import Html, el, join
from opwright.kit.bench.report.sources import sources
from opwright.kit.bench.report.standing import advice, sentence, speed
from opwright.kit.bench.report.tables import environment, figures_table, guide, overview, pill
from opwright.kit.bench.report.verdicts import badge, right, verdicts
from opwright.kit.bench.results import Results
from opwright.kit.bench.units import spell_case
from opwright.kit.op import Op

HERE = Path(__file__).parent
Row = dict[str, Any]


FEW = 3
"""So many operators are shown unfolded."""


def page(
    results: Sequence[Results], operators: Mapping[str, Op[..., Any]], known: Mapping[str, Checked] | None = None
) -> str:
    """The report as one HTML text, which needs nothing beside it."""
    known = known or {}
    rows = [_placed(row, i, r) for i, r in enumerate(results) for row in r.rows]
    names = sorted({row["op"] for row in rows})
    by_name = {name: [r for r in rows if r["op"] == name] for name in names}
    told = {name: about for r in results for name, about in r.operators.items()}
    head = [
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", "opwright report"),
        el("style", Html((HERE / "style.css").read_text(encoding="utf-8"))),
    ]
    places = [("overview", "overview"), *((name, f"op-{name}") for name in names), ("environment", "environment")]
    links = [el("a", name, href=f"#{place}") for name, place in places]
    top = el(
        "header",
        el("h1", "opwright"),
        el("button", "theme: system", type="button", id="theme", hidden=True),
        sentence(by_name, known),
        el("p", _promise(len(names)), class_="promise"),
        *map(_where, results),
        class_="top",
    )
    sections = [
        section(name, mine, told.get(name, {}), operators.get(name), results, known.get(name), few=len(names) <= FEW)
        for name, mine in by_name.items()
    ]
    body = [
        el("a", "Skip to the operators", href="#overview", class_="skip"),
        top,
        el("nav", *links, aria_label="Operators"),
        el("main", overview(names, rows, told, known), guide(), *sections, environment(results)),
        el("div", id="tip", role="status", aria_live="polite", hidden=True),
        el("script", Html((HERE / "script.js").read_text(encoding="utf-8"))),
    ]  # fmt: skip
    return "<!doctype html>\n" + el("html", el("head", *head), el("body", *body), lang="en") + "\n"


def _placed(row: Row, number: int, results: Results) -> Row:
    """A row with what it needs to know of its machine."""
    run = results.runs[row["run"]]
    busy = run["load"] if machines.busy(run, results.machine) else None
    return {**row, "machine": number, "place": machines.name(results.machine), "busy": busy}


def _promise(count: int) -> str:
    return (
        f"{count} operator{'s' if count != 1 else ''}: what each computes, whether it is right, what ran, "
        "and how fast it is against plain PyTorch."
    )


def _where(results: Results) -> Html:
    about, run = results.machine, results.runs[-1] if results.runs else {}
    words = [
        about.get("gpu"),
        about["cpu"],
        f"{about['threads']} thread{'s' if about['threads'] != 1 else ''}",
        f"torch {run.get('versions', {}).get('torch', 'unknown')}",
    ]
    line = " · ".join([*filter(None, words), str(run.get("date", ""))])
    busy = machines.busy(run, about)
    return el("p", line, " " if busy else None, pill(run["load"]) if busy else None, class_="where")


def section(
    name: str,
    rows: Sequence[Row],
    about: Mapping[str, Any],
    op: Op[..., Any] | None,
    results: Sequence[Results],
    known: Checked | None,
    *,
    few: bool = True,
) -> Html:
    """All about one operator. Among many it is folded, unless there is something to see to."""
    equation, _, rest = str(about.get("doc", "")).strip().partition("\n")
    groups = cases(rows, about.get("families", ()))
    todo = advice(rows)
    is_open = few or right(known) == "fails" or speed(rows) in ("slower", "unmeasured")
    head = [el("h2", name), badge(known), _pace(rows)]
    parts = [
        el("p", equation, class_="equation"),
        el("p", el("code", about.get("schema", "")), class_="schema"),
        el("ul", *[el("li", text) for text in todo], class_="advice", id=f"do-{name}") if todo else None,
        _picker(name, groups) if len(groups) > 1 else None,
        [_case(name, i, key, mine, rows, results, len(groups) > 1) for i, (key, mine) in enumerate(groups.items())],
        el("h3", "Is it right?"),
        verdicts(known, name),
        _verified(rows),
        el("h3", "Sources"),
        _sources(op),
        _more("What its documentation says", el("pre", rest.strip("\n"), tabindex="0")) if rest.strip() else None,
        _more("All figures in a table", figures_table(rows)),
    ]
    fold = el("details", el("summary", *head), *parts, class_="fold", open=is_open)
    return el("section", fold, id=f"op-{name}", class_="operator", aria_label=name)


def _pace(rows: Sequence[Row]) -> Html:
    """How fast it is, in a word."""
    words = {"faster": ("faster", "good"), "slower": ("slower in some case", "bad"), "even": ("as fast", "none")}
    text, tone = words.get(speed(rows), ("not measured", "bad"))
    return el("span", text, class_=f"badge {tone}")


def cases(rows: Sequence[Row], order: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows of each case that stands for its family, in the order in which the author declared them."""
    families: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = row["machine"], row["place"], row["device"], row["dtype"], row["family"]
        families.setdefault(key, []).append(row)
    place = {family: i for i, family in enumerate(order)}
    found = {}
    for key in sorted(families, key=lambda k: (k[0], k[2], place.get(k[4], 99), k[3] != "float32", k[3])):
        chosen = max(families[key], key=lambda r: (bool(r.get("stands")), r["size"] or 0))["case"]
        found[key] = [r for r in families[key] if r["case"] == chosen]
    return found


def _label(key: tuple[Any, ...], rows: Sequence[Row], many: bool) -> str:
    _, place, device, dtype, _ = key
    return f"{spell_case(rows[0]['case'])} · {dtype} · {device}" + (f" · {place}" if many else "")


def _picker(name: str, groups: Mapping[tuple[Any, ...], list[Row]]) -> Html:
    many = len({key[0] for key in groups}) > 1
    options = [el("option", _label(k, mine, many), value=f"{name}-{i}") for i, (k, mine) in enumerate(groups.items())]
    return el("label", "case ", el("select", *options, data_cases=name), class_="picker")


def _case(
    name: str,
    index: int,
    key: tuple[Any, ...],
    rows: Sequence[Row],
    all_rows: Sequence[Row],
    results: Sequence[Results],
    several: bool,
) -> Html:
    number, _, device, dtype, family = key
    stored = results[number].limits.get(device)
    limits = Limits.read(stored) if stored else Limits([], {})
    kin = [
        r for r in all_rows if (r["machine"], r["device"], r["dtype"], r["family"]) == (number, device, dtype, family)
    ]
    ran = next((r for r in rows if r.get("steps")), None)
    figures = [
        plots.bars(rows, "forward", "Forward"),
        plots.bars(rows, "forward_backward", "Forward + backward"),
        plots.roofline(rows, limits),
        plots.sweep(kin, family),
        plots.memory(rows),
        None if ran is None else plots.ran(ran),
    ]
    shown = [f for f in figures if f is not None]
    failed = [r for r in rows if r["status"] != "ok"]
    if not any(r["status"] == "ok" for r in rows):
        shown = [el("p", f"{r['variant']}: {r['status']}. {r['why']}", class_="failed") for r in failed]
    title = el("h3", _label(key, rows, len(results) > 1), class_="case-title")
    load = next((r["busy"] for r in rows if r["busy"]), None)
    note = None
    if load:
        note = el("p", pill(load), " Others were at work: believe the ratios, not the times.", class_="busy")
    return el("div", title, note, el("div", *shown, class_="grid"), class_="case", id=f"{name}-{index}", data_of=name)


def _verified(rows: Sequence[Row]) -> Html:
    wrong = [r for r in rows if r["status"] == "wrong"]
    right = [r for r in rows if r["status"] == "ok" and r.get("error") is not None]
    text = f"Before timing, results and gradients of {len(right)} measurements were compared with the float64 reference"
    text += f"; {len(wrong)} were wrong and were not timed." if wrong else "; none was wrong."
    return el("p", text, class_="quiet")


def _sources(op: Op[..., Any] | None) -> Html:
    if op is None:
        return el("p", "Not at hand: name its file when making the report.", class_="quiet")
    found = sources(op)
    reference, rest = found[: 1 + op.has_declared_gradient], found[1 + op.has_declared_gradient :]

    def column(items: Sequence[Any]) -> Html:
        return el("div", [join([el("h4", s.title), el("pre", el("code", s.text), tabindex="0")]) for s in items])

    body = el("div", column(reference), column(rest) if rest else None, class_="sources")
    return _more("The reference" + (" beside its kernels" if rest else ""), body)


def _more(title: str, *body: Any) -> Html:
    return el("details", el("summary", title), *body)
