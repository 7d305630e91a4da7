"""What is deprecated, until when, and whether the old names still work: from the table in `opwright.kit.deprecated`."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from typing import Any

from opwright.kit import deprecated
from opwright.kit.deprecated import Deprecation
from release.api.entries import Entry


def listed() -> list[Entry]:
    """The deprecations as public names."""
    return [Entry("deprecated", d.what, f": since {d.since}, gone in {d.gone}") for d in deprecated.DEPRECATED]


def overdue(version: str, table: Sequence[Deprecation] | None = None) -> list[str]:
    """What should be gone from a version and is still in the table."""
    lines = deprecated.DEPRECATED if table is None else table
    return [
        f"{d.what} was to be gone in {d.gone}, and this is {version}: take it out, with its line in "
        f"opwright.kit.deprecated, or move `gone`"
        for d in lines
        if d.overdue(version)
    ]


def missing(version: str, public: Sequence[Entry], table: Sequence[Deprecation] | None = None) -> list[str]:
    """What is deprecated, not yet to be gone, and does not work any more; or works without a warning."""
    lines = deprecated.DEPRECATED if table is None else table
    return [f"{d.what}: {why}" for d in lines if not d.overdue(version) and (why := _missing(d, public)) is not None]


def early(version: str, before: Sequence[Entry], now: Sequence[Entry]) -> list[str]:
    """What the last release promised for longer, and is not in the table any more.

    >>> early("0.3.1", [Entry("deprecated", "OPWRIGHT_FAST", ": since 0.3, gone in 0.4")], [])
    ['OPWRIGHT_FAST: the last release promised it until 0.4, and it is not deprecated any more but gone']
    """
    kept = {e.name for e in now}
    return [
        f"{e.name}: the last release promised it until {until}, and it is not deprecated any more but gone"
        for e in before
        if e.kind == "deprecated" and e.name not in kept
        for until in [e.rest.rpartition(" ")[2]]
        if deprecated.release(version) < deprecated.release(until)
    ]


def _missing(line: Deprecation, public: Sequence[Entry]) -> str | None:
    gone = f"it is promised until {line.gone}, and is not there"
    if line.kind in ("option", "variable"):
        return None if line.what in {e.name for e in public if e.kind == line.kind} else gone
    if line.kind == "parameter":
        name, _, parameter = line.what.removesuffix("=)").partition("(")
        found = _find(name)
        return None if parameter in getattr(found, "__deprecated_parameters__", ()) else gone
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = _find(line.what)
    if found is None:
        return gone
    # What warns: a function itself, what a property reads, what an emptied module asks.
    warns = [found, getattr(found, "fget", None), getattr(found, "__getattr__", None)]
    told = any(hasattr(f, "__deprecated__") for f in warns) or any(str(line) in str(w.message) for w in said)
    return None if told else "it works without a warning; decorate it, or serve it from a __getattr__"


def _find(name: str) -> Any:
    """What a dotted name stands for; None where there is nothing."""
    parts, found = name.split("."), None
    for i, part in enumerate(parts):
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(".".join(parts[: i + 1]))
            except ImportError:
                return None
    return found
