"""How operators stand: the report's first sentence, and what to do where one is slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opwright.kit.bench.checked import Checked
from opwright.kit.bench.report.html import Html, el
from opwright.kit.bench.report.verdicts import right
from opwright.kit.bench.units import spell_case, spell_us

Row = dict[str, Any]
PASSES = ("forward", "forward_backward")
MOST = 4
"""Operators that a clause names."""


def said(row: Row, which: str) -> str:
    """What is said of a pass against eager; empty where it was not measured, or is another function's."""
    if row.get("status") != "ok" or not row.get("same", True):
        return ""
    return str(row.get(f"{which}_speedup", {}).get("verdict", ""))


def speed(rows: Sequence[Row]) -> str:
    """`slower` where some case that stands for its family is, `faster` where some is and none is slower, `even`, or
    `unmeasured`."""
    mine = [r for r in rows if r["kind"] == "operator"]
    mine = [r for r in mine if r.get("stands")] or mine
    told = [said(r, which) for r in mine for which in PASSES]
    if not any(told) or any(r["status"] != "ok" for r in mine):
        return "unmeasured"
    for word in ("slower", "faster"):
        if any(word in each for each in told):
            return word
    return "even"


def sentence(rows: Mapping[str, Sequence[Row]], known: Mapping[str, Checked]) -> Html:
    """All operators in one sentence. Every count in it is exact; one that is slower and not checked counts twice."""
    rights = {name: right(known.get(name)) for name in rows}
    speeds = {name: speed(mine) for name, mine in rows.items()}
    checked = any(state != "none" for state in rights.values())
    best = [n for n in rows if speeds[n] == "faster" and (rights[n] == "holds" or not checked)]
    words = ("holds and is faster", "hold and are faster") if checked else ("is faster", "are faster")
    clauses = [
        ([n for n in rows if rights[n] == "fails"], "fails its check", "fail their check"),
        ([n for n in rows if speeds[n] == "slower"], "is slower in some case", "are slower in some case"),
        ([n for n in rows if speeds[n] == "even"], "is as fast", "are as fast"),
        ([n for n in rows if speeds[n] == "unmeasured"], "could not be measured", "could not be measured"),
        (
            [n for n in rows if rights[n] == "before"],
            "was checked before its last change",
            "were checked before their last change",
        ),
        (
            [n for n in rows if rights[n] == "unknown"],
            "was checked, but its sources are not at hand",
            "were checked, but their sources are not at hand",
        ),
        ([n for n in rows if rights[n] == "none"], "is not checked", "are not checked"),
    ]
    parts: list[Any] = []
    if len(rows) == 1:
        whole = [words[0]] if best else []
        whole += [one for names, one, _ in clauses if names]
        parts = [_link(next(iter(rows))), " ", "; ".join(whole)]
    else:
        head = f"{len(best)} of {len(rows)} operators {words[1]} than eager PyTorch"
        if len(best) == len(rows):
            head = f"All {len(rows)} operators {words[1]} than eager PyTorch"
        parts.append(head)
        for names, one, many in clauses:
            if len(names) == len(rows) and one == "is not checked":
                parts.append("; none is checked")
            elif names:
                parts += [f"; {len(names)} {one if len(names) == 1 else many} (", _names(names), ")"]
    return el("p", *parts, ".", class_="sentence")


def _link(name: str) -> Html:
    return el("a", name, href=f"#op-{name}")


def _names(names: Sequence[str]) -> list[Any]:
    shown: list[Any] = []
    for i, name in enumerate(names[:MOST]):
        shown += [", " if i else None, _link(name)]
    return shown + ([f" and {len(names) - MOST} more"] if len(names) > MOST else [])


def advice(rows: Sequence[Row]) -> list[str]:
    """What to do where an operator is slower than eager, a sentence for each reason."""
    found: dict[str, list[str]] = {}
    for row in (r for r in rows if r["kind"] == "operator"):
        slower = [which for which in PASSES if "slower" in said(row, which)]
        if not slower:
            continue
        kin = [r for r in rows if _family(r) == _family(row) and r["kind"] == "operator"]
        found.setdefault(_cure(row, slower, kin), []).append(f"{spell_case(row['case'])} {row['dtype']}")
    busy = [r for r in rows if r["kind"] == "operator" and r.get("busy")]
    told = [f"Slower at {_some(cases)}: {cure}" for cure, cases in found.items()]
    if told and busy:
        told.append("The machine was busy: measure again on a quiet one before changing anything.")
    return told


def _family(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(k) for k in ("machine", "device", "dtype", "family"))


def _cure(row: Row, slower: Sequence[str], kin: Sequence[Row]) -> str:
    steps = {step["name"]: step for step in row.get("steps", ())}
    forward, backward = steps.get("forward", {}), steps.get("backward", {})
    why = str(backward.get("why", ""))
    if slower == ["forward_backward"]:
        if "computes the forward again" in why:
            return (
                "the derived backward computes the forward again. Declare a gradient (@op.gradient), or save what it "
                "needs (@op.saving)."
            )
        if backward.get("runs") == "reference":
            return "the backward runs as plain PyTorch. Give the gradient a kernel of its own (op.backward)."
    if forward.get("runs") == "reference":
        return f"the reference ran, and no kernel ({forward.get('why', '')}). Widen the domain, or write a kernel."
    if "recorded in Python" in why:
        return "calls are recorded in Python. `opwright build` makes the part that records them in C++."
    at = next((r for r in kin if r.get("stands")), row)
    small = (row.get("size") or 0) < (at.get("size") or 0)
    if small and not any("slower" in said(at, which) for which in slower):
        host = row.get(f"{slower[0]}_host_us")
        cost = "" if host is None else f" ({spell_us(host)})"
        return (
            f"the cost of a call{cost} shows at small sizes; at {spell_case(at['case'])} it is not slower. Call it on "
            "more data at a time, or under torch.compile."
        )
    return (
        "PyTorch’s own kernels are better there. Profile the kernel, or leave these calls out of its domain, so that "
        "the reference runs."
    )


def _some(cases: Sequence[str]) -> str:
    shown = list(dict.fromkeys(cases))
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
