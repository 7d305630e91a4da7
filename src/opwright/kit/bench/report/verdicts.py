"""What the check said of an operator: a badge, and a matrix of properties and what they were tried on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opwright.kit.bench.checked import Checked
from opwright.kit.bench.report.html import Html, el

Result = Mapping[str, Any]
LONGEST = 9
"""Lines of a matrix; what has more goes on in a second one beside it."""


def results_of(listed: Sequence[Result], op: str, qualname: str = "") -> list[dict[str, Any]]:
    """Of the check's results those of an operator, its gradients and forms."""
    found = []
    for result in listed:
        name = str(result.get("op", "")).replace("::", ".").rpartition(".")[2]
        while name != op and name.endswith(("_backward", "_saving")):
            name = name.removesuffix("_backward").removesuffix("_saving")
        home = result.get("home")
        if home == qualname if home and qualname else name == op:
            found.append(dict(result))
    return found


def count(number: int, word: str, many: str) -> str:
    """A number of things."""
    return f"{number} {word if number == 1 else many}"


def right(known: Checked | None) -> str:
    """How an operator stands: `holds`, `fails`, `before` its last change, `unknown` sources, or `none`."""
    if known is None or not known.results:
        return "none"
    if any(r.get("failures") for r in known.results):
        return "fails"
    if not any(r.get("cases") for r in known.results):
        return "none"
    return {"now": "holds", "before": "before", "unknown": "unknown"}[known.state]


SHORT = {"holds": "✓ holds", "fails": "✗ fails", "before": "changed since", "unknown": "not at hand"}


def badge(known: Checked | None, *, short: bool = False) -> Html:
    """The verdict in a few words."""
    state = right(known)
    tone = {"holds": "good", "fails": "bad", "before": "warn", "unknown": "warn"}.get(state, "none")
    if known is None or state == "none":
        return el("span", "not checked", class_="badge none")
    failed = [r for r in known.results if r.get("failures")]
    tried = [r for r in known.results if r.get("cases")]
    cases = count(sum(int(r.get("cases") or 0) for r in tried), "case", "cases")
    if state == "fails":
        said = f"{len(failed)} of {len(tried)} properties fail"
    elif state == "before":
        said = "checked before its last change"
    elif state == "unknown":
        said = "checked; its sources are not at hand"
    else:
        said = count(len(tried), "property holds", "properties hold") + f" in {cases}"
    return el("span", SHORT[state] if short else said, class_=f"badge {tone}", title=said if short else None)


def verdicts(known: Checked | None, op: str) -> Html:
    """The matrix, and below it the failures with the command that replays them, and why something was skipped."""
    state = right(known)
    if known is None or not known.results:
        again = el("code", f"opwright check {op}")
        return el("p", "Not checked. ", again, " holds it against its reference.", class_="quiet")
    parts: list[Any] = []
    if state == "before":
        parts.append(
            el("p", "It was changed since it was checked; check it again. What held before the change:", class_="busy")
        )
    if state == "unknown":
        parts.append(el("p", "Its sources are not at hand: name its file when making the report.", class_="busy"))
    devices = list(dict.fromkeys(str(r.get("device", "")) for r in known.results))
    for device in devices:
        mine = [r for r in known.results if str(r.get("device", "")) == device]
        parts.append(_matrix(mine, op, f" on {device}" if device and len(devices) > 1 else ""))
    parts += [_failed(r, op) for r in known.results if r.get("failures")]
    parts.append(_skipped(known.results, op))
    parts.append(el("p", known.said, class_="quiet") if known.said else None)
    return el("div", *parts, class_="verdicts")


def column(name: str, op: str) -> str:
    """What a gradient or form of an operator is called in a table.

    >>> [column(name, "f") for name in ("f", "f_backward", "f_backward_backward", "f_saving", "f_saving_backward")]
    ['forward', 'backward', 'second backward', 'saving form', 'saving form’s backward']
    """
    rest = name.replace("::", ".").rpartition(".")[2].removeprefix(op)
    known = {"": "forward", "_backward": "backward", "_backward_backward": "second backward"}
    if rest.startswith("_saving"):
        above = known.get(rest.removeprefix("_saving"), rest)
        return "saving form" if above == "forward" else f"saving form’s {above}"
    return known.get(rest, name)


def _matrix(results: Sequence[Result], op: str, where: str) -> Html:
    columns = list(dict.fromkeys(str(r.get("op", "")) for r in results))
    properties = list(dict.fromkeys(str(r.get("property", "?")) for r in results))
    found = {(r.get("property", "?"), r.get("op", "")): r for r in results}
    lines = max(1, -(-len(properties) // -(-len(properties) // LONGEST)))
    tables = []
    for first in range(0, len(properties), lines):
        head = [el("th", f"property{where}", scope="col"), *(el("th", column(c, op), scope="col") for c in columns)]
        body = []
        for name in properties[first : first + lines]:
            body.append(el("tr", el("th", name, scope="row"), *(_cell(found.get((name, c))) for c in columns)))
        caption = el("caption", f"Properties of {op}{where}, and in how many cases each holds")
        table = el("table", caption, el("thead", el("tr", *head)), el("tbody", *body), class_="matrix")
        tables.append(el("div", table, class_="scroll"))
    return el("div", *tables, class_="matrices")


def _cell(result: Result | None) -> Html:
    if result is None:
        return el("td", "", class_="none")
    failures, cases = result.get("failures") or [], int(result.get("cases") or 0)
    many = count(cases, "case", "cases")
    if failures:
        return el("td", f"✗ {len(failures)} of {cases}", class_="bad", title=f"fails in {len(failures)} of {many}")
    if cases:
        return el("td", f"✓ {cases}", class_="good", title=f"holds in {many}")
    return el("td", "–", class_="none", title=f"skipped: {result.get('skipped') or ''}")


def _failed(result: Result, op: str) -> Html:
    failures, where = result["failures"], column(str(result.get("op", "")), op)
    many = count(int(result.get("cases") or 0), "case", "cases")
    title = el("strong", f"{result.get('property', '?')}, {where}")
    return el(
        "div",
        el("p", title, f" fails in {len(failures)} of {many}"),
        [_failure(f) for f in failures[:3]],
        el("p", f"and {len(failures) - 3} more", class_="quiet") if len(failures) > 3 else None,
        class_="failure",
    )


def _failure(failure: Mapping[str, Any]) -> Html:
    where = " ".join(str(failure[k]) for k in ("dtype", "layout", "sample") if failure.get(k) not in (None, ""))
    replay = failure.get("replay")
    return el(
        "div",
        el("p", str(failure.get("message", "")), class_="message"),
        el("p", where, class_="quiet") if where else None,
        el("p", "again: ", el("code", str(replay))) if replay else None,
    )


def _skipped(results: Sequence[Result], op: str) -> Html | None:
    """Why something did not run, each reason once."""
    reasons: dict[str, list[str]] = {}
    for r in results:
        if not r.get("cases") and not r.get("failures") and r.get("skipped"):
            name = f"{r.get('property', '?')} ({column(str(r.get('op', '')), op)})"
            reasons.setdefault(str(r["skipped"]), []).append(name)
    if not reasons:
        return None
    lines = [el("li", el("strong", ", ".join(who)), f" skipped: {why}") for why, who in reasons.items()]
    number = sum(map(len, reasons.values()))
    return el("details", el("summary", f"{number} skipped, and why"), el("ul", *lines, class_="reasons"))
