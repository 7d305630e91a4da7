"""Results that last: one file a machine, rows that say when and with what they were measured."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from opwright.kit.bench import machine as this
from opwright.kit.bench.limits import write

VERSION = 2
KEY = ("op", "case", "dtype", "device", "variant")


class Results:
    """What is known of one machine.

    A row belongs to a run: versions, commit and date. Measuring a case again replaces its rows and keeps the others.
    """

    def __init__(self, machine: dict[str, Any]) -> None:
        self.machine = machine
        self.limits: dict[str, Any] = {}
        """By device."""
        self.operators: dict[str, Any] = {}
        """What the report says of each: its docstring and schema."""
        self.runs: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []

    @classmethod
    def here(cls) -> Results:
        """For this machine, empty."""
        return cls(this.machine())

    def begin(self) -> int:
        """Begin a run; its number goes into rows."""
        when = {"commit": this.commit(), "date": this.today(), "load": this.load()}
        self.runs.append({"versions": this.versions(), **when})
        return len(self.runs) - 1

    def add(self, rows: Iterable[dict[str, Any]], run: int) -> None:
        """Add the rows of a case, in the place of those it had."""
        rows = [{**row, "run": run} for row in rows]
        cases = {tuple(row[k] for k in KEY[:-1]) for row in rows}
        kept = [
            row
            for row in self.rows
            if tuple(row[k] for k in KEY[:-1]) not in cases
            or (row["run"] == run and row["variant"] not in {r["variant"] for r in rows})
        ]
        self.rows = kept + rows

    def to_json(self) -> dict[str, Any]:
        """As the file holds it. Runs that no row speaks of any more are left out."""
        used = sorted({row["run"] for row in self.rows})
        rows = sorted(({**row, "run": used.index(row["run"])} for row in self.rows), key=_order)
        return {
            "version": VERSION,
            "machine": self.machine,
            "runs": [self.runs[i] for i in used],
            "limits": self.limits,
            "operators": {name: self.operators[name] for name in sorted(self.operators)},
            "rows": rows,
        }

    def save(self, file: Path) -> None:
        """Write the file, whole or not at all."""
        write(file, json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n")


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    kinds = ("reference", "compiled", "operator", "variant", "rival")
    return (
        row["op"],
        row["device"],
        row["dtype"],
        row["family"],
        row["size"] or 0,
        kinds.index(row["kind"]),
        row["variant"],
    )


def read(file: Path) -> Results:
    """The results in a file. One of an older version is brought up to date; anything else is refused with a reason."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise ValueError(f"{file}: cannot be read: {e.strerror}") from None
    except ValueError as e:
        raise ValueError(f"{file}: is not JSON ({e}); measure again to replace it") from None
    if not isinstance(stored, dict) or not isinstance(stored.get("rows"), list):
        raise NotOurs(f"{file}: holds no results of `opwright bench`; give a file that it wrote")
    version = stored.get("version", 1)
    if not isinstance(version, int) or version > VERSION:
        raise ValueError(
            f"{file}: has version {version!r} of the results' form, this opwright reads up to {VERSION}; "
            "use a newer opwright, or measure again"
        )
    if version < 2:
        stored = _from_first(stored, file)
    if not isinstance(stored.get("machine"), dict) or not isinstance(stored.get("runs"), list):
        raise ValueError(f"{file}: lacks its machine or its runs; measure again to replace it")
    found = Results(stored["machine"])
    found.limits, found.operators = stored.get("limits", {}), stored.get("operators", {})
    found.runs, found.rows = list(stored["runs"]), list(stored["rows"])
    for row in found.rows:
        missing = [k for k in (*KEY, "status", "run") if k not in row]
        if missing or not 0 <= row["run"] < len(found.runs):
            raise ValueError(f"{file}: a row lacks {', '.join(missing) or 'its run'}; measure again to replace it")
    return found


def read_all(place: Path) -> list[Results]:
    """The results in a file, or of every file of a folder that holds any; other files there are left alone."""
    if not place.is_dir():
        return [read(place)]
    found = []
    for file in sorted(place.glob("*.json")):
        try:
            found.append(read(file))
        except NotOurs:
            continue
    return found


class NotOurs(ValueError):
    """A file that holds something else."""


def _from_first(stored: dict[str, Any], file: Path) -> dict[str, Any]:
    """The first form had one heading for all rows."""
    if "machine" not in stored or not all(isinstance(r, dict) and "variant" in r for r in stored["rows"]):
        raise NotOurs(f"{file}: holds figures of a script in benchmarks/, not of `opwright bench`")
    run = {key: stored.get(key, {} if key == "versions" else "") for key in ("versions", "commit", "date")}
    rows = [{"status": "ok", "why": "", "run": 0, **row} for row in stored["rows"]]
    return {**stored, "version": VERSION, "runs": [run], "rows": rows}
