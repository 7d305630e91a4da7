"""What changed between two lists of public names, and whether code written for the first still runs with the second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from release.api.entries import Entry, Parameter, signature

Weight = Literal["additive", "breaking"]
CALLED = ("class", "method", "function", "operator")


@dataclass(frozen=True)
class Change:
    """One change in words."""

    weight: Weight
    what: str


def compare(before: Sequence[Entry], now: Sequence[Entry]) -> list[Change]:
    """The changes from one list to the other, in the order of their names.

    >>> old = [Entry("function", "opwright.load", "(path)")]
    >>> for change in compare(old, [Entry("function", "opwright.load", "(path, *, deep=False)")]):
    ...     print(change.weight, "·", change.what)
    additive · function opwright.load: the parameter deep is new, with a default
    """
    deprecated = {e.name for e in now if e.kind == "deprecated"}
    changes: list[tuple[str, Change]] = []
    for name, kind in sorted({(e.name, e.kind) for e in [*before, *now]}):
        old = [e for e in before if (e.name, e.kind) == (name, kind)]
        new = [e for e in now if (e.name, e.kind) == (name, kind)]
        changes += [(name, change) for change in _compare(f"{kind} {name}", old, new, deprecated)]
    return [change for _, change in sorted(changes, key=lambda c: c[0])]


def weight(changes: Iterable[Change]) -> Weight | None:
    """The weight of them all; None when there are none."""
    weights = {change.weight for change in changes}
    return "breaking" if "breaking" in weights else "additive" if weights else None


def told(changes: Sequence[Change], *, accepted: bool = False) -> str:
    """The changes for a reader: what each is, what they ask of the version, and how to accept them."""
    if not changes:
        return "the public names are those of tests/api.txt"
    marks = {"additive": "+", "breaking": "!"}
    lines = [f"  {marks[change.weight]} {change.weight}: {change.what}" for change in changes]
    if weight(changes) == "breaking":
        asks = (
            "Code that users have may stop working. Keep the old name for a minor release and deprecate it (see "
            "opwright.kit.deprecated); or, if it must go now, the next version is a major one, below 1.0 a minor."
        )
    else:
        asks = "All of it is additive: the next version is a minor one."
    accept = "To accept it: python -m release.api, and an entry in CHANGELOG.md."
    if accepted:
        accept = "tests/api.txt has it now; give it an entry in CHANGELOG.md."
    return "\n".join(["the public names changed:", *lines, asks, accept])


def _compare(title: str, old: list[Entry], new: list[Entry], deprecated: set[str]) -> list[Change]:
    kind, _, name = title.partition(" ")
    if kind == "deprecated":  # going when its time has come is what it said; test_api.py watches the time
        if not new:
            return [Change("breaking", f"{name}, which was deprecated, is gone")]
        return [] if old else [Change("additive", f"{name} is deprecated")]
    if not old:
        needed = kind == "argument" and not any(e.rest for e in new)
        return [Change("breaking", f"{title} is new, and must be given")] if needed else [_added(title)]
    if not new:
        if name in deprecated:
            return [Change("additive", f"{title} is no longer listed, and warns where it is used")]
        return [Change("breaking", f"{title} is gone")]
    if kind in CALLED and len(old) == len(new) == 1 and old[0].rest[:1] == new[0].rest[:1] == "(":
        return [Change(w, f"{title}: {what}") for w, what in _signatures(name, old[0].rest, new[0].rest, deprecated)]
    gone = [e for e in old if e not in new]  # of several C++ functions with one name
    came = [e for e in new if e not in old]
    if gone and not came:
        return [Change("breaking", f"{title}: one of its forms is gone, {_shown(e)}") for e in gone]
    if came and not gone:
        return [Change("additive", f"{title}: it has another form, {_shown(e)}") for e in came]
    if gone:
        was, now = ", ".join(map(_shown, gone)), ", ".join(map(_shown, came))
        return [Change("breaking", f"{title}: it was {was}, and is {now}")]
    return []


def _added(title: str) -> Change:
    return Change("additive", f"{title} is new")


def _shown(entry: Entry) -> str:
    return entry.rest.removeprefix(": ").removeprefix(" = ").strip() or "nothing more"


def _signatures(name: str, old: str, new: str, deprecated: set[str]) -> list[tuple[Weight, str]]:
    (before, gave), (now, gives) = signature(old), signature(new)
    found: list[tuple[Weight, str]] = []
    known, present = {p.name: p for p in before}, {p.name: p for p in now}
    for p in before:
        if p.name not in present:
            kept = f"{name}({p.name}=)" in deprecated
            found.append(
                ("additive", f"the parameter {p.name} is deprecated")
                if kept
                else ("breaking", f"the parameter {p.name} is gone")
            )
    places = [p.name for p in before if p.by_position and not p.several]
    last = max((i for i, p in enumerate(now) if p.name in places), default=-1)
    for i, p in enumerate(now):
        if p.name in known:
            found += _parameters(known[p.name], p)
        elif p.required:
            found.append(("breaking", f"the parameter {p.name} is new, and must be given"))
        elif p.by_position and i < last:
            found.append(("breaking", f"the parameter {p.name} is new, before others that may be given by position"))
        else:
            found.append(("additive", f"the parameter {p.name} is new" + (", with a default" if p.default else "")))
    stayed = [n for n in places if n in present and present[n].by_position]
    order = [p.name for p in now if p.name in stayed]
    if order != stayed:
        found.append(("breaking", f"the order is {', '.join(order)}, it was {', '.join(stayed)}"))
    if gave != gives:
        found.append(
            (_narrower(gives, gave), f"it returns {gives or 'what it does not say'}, it was {gave or 'unsaid'}")
        )
    return found


def _parameters(old: Parameter, new: Parameter) -> list[tuple[Weight, str]]:
    found: list[tuple[Weight, str]] = []
    for way, was, may in (
        ("position", old.by_position, new.by_position),
        ("keyword", old.by_keyword, new.by_keyword),
    ):
        if was != may:
            may_now = "may now" if may else "can no longer"
            found.append(("additive" if may else "breaking", f"{old.name} {may_now} be given by {way}"))
    if old.default != new.default:
        if old.default is None:
            found.append(("additive", f"{old.name} has a default now, {new.default}"))
        elif new.default is None:
            found.append(("breaking", f"{old.name} has no default any more, it was {old.default}"))
        else:
            found.append(("breaking", f"the default of {old.name} is {new.default}, it was {old.default}"))
    if old.type != new.type:
        found.append(
            (_narrower(old.type, new.type), f"{old.name} is of type {new.type or 'any'}, it was {old.type or 'any'}")
        )
    return found


def _narrower(one: str, other: str) -> Weight:
    """Additive where every value of the first type is one of the second, as far as their texts tell."""
    first, second = ({part.strip() for part in text.split("|")} for text in (one, other))
    return "additive" if first <= second or other in ("", "Any", "object") else "breaking"
