"""Stored results that a release relies on: there, of this version, and not too old."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests import on_gpu

Fault = tuple[str, str]
RESULTS = "benchmarks/results"
ON_GPU = "tests/on_gpu.json"


def faults(root: Path, version: str, torch: tuple[str, str], today: datetime.date, days: int) -> list[Fault]:
    """What is missing, stale or failed, each with the command that makes it again. `torch`: the oldest and the newest
    that are said to be served."""
    found: list[Fault] = []
    for place, again in places(root):
        file = root / place
        if not file.exists():
            found.append((f"{place} is missing", again))
            continue
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
        except json.JSONDecodeError as e:
            found.append((f"{place} cannot be read: {e}", again))
            continue
        if place == ON_GPU:
            found += [(f"{place}: {what}", again) for what in on_gpu.stale(root, stored)]
            continue
        found += [(f"{place}: {what}", again) for what in judge(place, stored, version, torch, today, days)]
    return found


def places(root: Path) -> list[tuple[str, str]]:
    """The files, and how each is made. What `opwright check` keeps for a machine's own report is not among them."""
    found = [("tests/versions.json", "make test-versions"), ("tests/opinfo/results.json", "make test-opinfo")]
    found.append((ON_GPU, "make test-cuda"))
    measured = sorted(f.name for f in (root / RESULTS).glob("*.json") if not f.name.startswith("checked-"))
    for name in measured or ["*.json"]:
        found.append((f"{RESULTS}/{name}", "make bench-cuda" if "cuda" in name else "make bench"))
    return found


def judge(
    place: str, stored: Mapping[str, Any], version: str, torch: tuple[str, str], today: datetime.date, days: int
) -> Iterator[str]:
    """What is wrong with one file's content."""
    runs: list[Mapping[str, Any]] = [stored]
    if place == "tests/versions.json":
        runs = list(stored.values())
        tried = {".".join(name.split(".")[:2]) for name in stored}
        yield from (f"torch {wanted} was not tried" for wanted in torch if wanted not in tried)
        yield from (f"{run['failed']} tests failed under torch {name}" for name, run in stored.items() if run["failed"])
    elif "runs" in stored:
        runs = stored["runs"][-1:]
    elif place == "tests/opinfo/results.json" and stored["counts"]["findings"]:
        yield f"{stored['counts']['findings']} findings"
    for run in runs:
        if "date" not in run:
            yield "it names no date"
            continue
        age = (today - datetime.date.fromisoformat(run["date"])).days
        if age > days:
            yield f"it is {age} days old, of {run['date']}, and {days} are allowed"
        measured = run.get("versions", {}).get("opwright", version)
        if measured != version:
            yield f"it is of opwright {measured}, and this is {version}"
