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
APART = {
    "soak.json": "make soak", "right.json": "make soak", "recurrent.json": "make bench-cuda",
    "check_time.json": "python -P benchmarks/check_time.py OTHER",
}  # fmt: skip
"""What makes a file of results, where its name does not tell."""


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
    return found + [(f"{RESULTS}/{name}", _made(name)) for name in measured or ["*.json"]]


def _made(name: str) -> str:
    """The command that makes a file of results again."""
    return APART.get(name, "make bench-cuda" if "cuda" in name else "make bench")


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
    elif isinstance(stored.get("runs"), list):  # of a machine; others have runs of another kind
        runs = stored["runs"][-1:]
    elif place == "tests/opinfo/results.json" and stored["counts"]["findings"]:
        yield f"{stored['counts']['findings']} findings"
    elif isinstance(stored.get("alarms"), list | int) and stored["alarms"]:
        yield f"{len(stored['alarms']) if isinstance(stored['alarms'], list) else stored['alarms']} false alarms"
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
