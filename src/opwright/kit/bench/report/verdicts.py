"""What the check said of an operator, property by property."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opwright.kit.bench.report.html import Html, el


def results_of(check: Mapping[str, Any] | None, op: str) -> list[dict[str, Any]]:
    """The check's results for an operator and its rungs."""
    found = []
    for result in (check or {}).get("results", ()):
        name = str(result.get("op", "")).replace("::", ".").rpartition(".")[2]
        while name != op and name.endswith(("_backward", "_saving")):
            name = name.removesuffix("_backward").removesuffix("_saving")
        if name == op:
            found.append(result)
    return found


def badge(check: Mapping[str, Any] | None, op: str) -> Html:
    """The verdict in a word."""
    results = results_of(check, op)
    if not results:
        return el("span", "not checked", class_="badge none")
    failed = [r for r in results if r.get("failures")]
    tried = [r for r in results if r.get("cases")]
    if failed:
        return el("span", f"{len(failed)} of {len(tried)} properties fail", class_="badge bad")
    return el("span", f"proved: {len(tried)} properties", class_="badge good")


def verdicts(check: Mapping[str, Any] | None, op: str) -> Html:
    """A line for each property, and the failures with the command that replays them."""
    results = results_of(check, op)
    if not results:
        return el(
            "p", "Not checked in this report. ", el("code", f"opwright check {op}"), " proves it.", class_="quiet"
        )
    items = []
    for r in results:
        failures = r.get("failures") or []
        cases, skipped = int(r.get("cases") or 0), r.get("skipped")
        state = "bad" if failures else "good" if cases else "none"
        sign = {"bad": "✗", "good": "✓", "none": "–"}[state]
        many = f"{cases} case{'s' if cases != 1 else ''}"
        said = {"bad": f"fails in {len(failures)} of {many}", "good": f"holds in {many}", "none": "skipped"}
        counts = said[state] + (f": {skipped}" if isinstance(skipped, str) and skipped and state != "bad" else "")
        rung = str(r.get("op", "")).replace("::", ".").rpartition(".")[2]
        name = el("span", r.get("property", "?"), class_="property")
        where = el("span", rung, class_="rung") if rung != op else None
        items.append(
            el(
                "li",
                el("span", sign, class_="sign", aria_hidden="true"),
                name,
                where,
                el("span", counts, class_="counts"),
                [_failure(f) for f in failures[:3]],
                el("p", f"and {len(failures) - 3} more", class_="quiet") if len(failures) > 3 else None,
                class_=state,
            )
        )
    return el("ul", *items, class_="verdicts")


def _failure(failure: Mapping[str, Any]) -> Html:
    where = " ".join(str(failure[k]) for k in ("dtype", "layout", "sample") if failure.get(k) not in (None, ""))
    replay = failure.get("replay")
    return el(
        "div",
        el("p", str(failure.get("message", "")), class_="message"),
        el("p", where, class_="quiet") if where else None,
        el("p", "again: ", el("code", str(replay))) if replay else None,
        class_="failure",
    )
