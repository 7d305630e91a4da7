"""What the check found, kept beside what was measured: of which operator, and of which state of its sources."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from opwright.kit.bench import machine as this
from opwright.kit.bench import places
from opwright.kit.bench.limits import write
from opwright.kit.op import Op

VERSION = 1
PREFIX = "checked-"
State = Literal["now", "before", "unknown"]
"""Whether sources are as they were when they were checked, have changed since, or are not at hand."""
Entry = dict[str, Any]


@dataclass(frozen=True)
class Checked:
    """What is known of one operator."""

    results: list[dict[str, Any]]
    state: State = "now"
    said: str = ""
    """When and with what it was checked."""


def beside(results: Path) -> Path:
    """The file of checks that belongs to a file of measurements."""
    return results.with_name(PREFIX + results.name)


def identify(op: Op[..., Any], file: Path) -> Entry:
    """What an operator is known by in a file, and the state of its sources. Ask before it is checked."""
    base = places.base_of(file)
    known = {"op": op.home.qualname, "origin": places.origin(op, base)}
    return {**known, "digest": places.fingerprint(op), "sources": places.sources(op, base)}


def keep(file: Path, found: Sequence[tuple[Entry, list[dict[str, Any]]]], *, device: str, seed: int) -> None:
    """Add the results of a check to a file. A property that was tried again replaces what was known of it, but for a
    failure under another seed, which stands until the sources change; what was known of other sources is forgotten."""
    entries = read(file) if file.exists() else []
    run = {"device": device, "seed": seed, "date": this.today(), "versions": this.versions()}
    when = {"seed": seed, "date": run["date"], "torch": this.versions().get("torch", "unknown")}
    for about, results in found:
        key = _key({**about, **run})
        before = next((e for e in entries if _key(e) == key), None)
        kept = before["results"] if before is not None and before["digest"] == about["digest"] else []
        merged = {(r["op"], r["property"]): r for r in kept}
        for r in results:
            known = merged.get((r["op"], r["property"]), {})
            if r["failures"] or not known.get("failures") or known.get("when", {}).get("seed") == seed:
                merged[r["op"], r["property"]] = {**r, "when": when}
        entries = [e for e in entries if e is not before] + [{**about, **run, "results": list(merged.values())}]
    whole = {"version": VERSION, "checks": sorted(entries, key=_key)}
    write(file, json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


def _key(entry: Entry) -> tuple[str, ...]:
    return entry["op"], entry["origin"], entry["device"]


def read(file: Path) -> list[Entry]:
    """The checks in a file; anything else is refused with a reason."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise ValueError(f"{file}: cannot be read: {e.strerror}") from None
    except ValueError as e:
        raise ValueError(f"{file}: is not JSON ({e}); remove it, and check again") from None
    version = stored.get("version") if isinstance(stored, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise ValueError(f"{file}: has version {version} of its form, this opwright reads up to {VERSION}")
    entries = stored.get("checks") if isinstance(stored, dict) else None
    needed = {"op", "origin", "device", "digest", "sources", "date", "versions", "seed", "results"}
    if not isinstance(entries, list) or not all(isinstance(e, dict) and needed <= e.keys() for e in entries):
        raise ValueError(f"{file}: is not what `opwright check` keeps; remove it, and check again")
    return entries


def known(place: Path, qualname: str, op: Op[..., Any] | None) -> Checked | None:
    """What is kept of an operator beside a results file, or in a folder of them. `op`, where it could be loaded, tells
    namesakes of other files apart and whether its definition changed; else its files do."""
    files = sorted(place.glob(f"{PREFIX}*.json")) if place.is_dir() else [beside(place)]
    found: list[tuple[Entry, State]] = []
    for file in files:
        if not file.is_file():
            continue
        base = places.base_of(file)
        mine = [e for e in read(file) if e["op"] == qualname]
        if op is not None:
            mine = [e for e in mine if e["origin"] == places.origin(op, base)]
        found += [(e, _state(e, op, base)) for e in mine]
    if len({e["origin"] for e, _ in found}) > 1:  # nobody can say whose it is
        return None
    return _best(found)


def _state(entry: Entry, op: Op[..., Any] | None, base: Path | None) -> State:
    if op is not None:
        return "now" if places.fingerprint(op) == entry["digest"] else "before"
    now = {name: places.content((base or Path()) / name) for name in entry["sources"]}
    if not now or None in now.values():
        return "unknown"
    return "now" if now == entry["sources"] else "before"


def _best(found: list[tuple[Entry, State]]) -> Checked | None:
    """For each device the latest of what says most: what holds now before what held once."""
    order: tuple[State, ...] = ("now", "unknown", "before")
    state = next((s for s in order if any(s == each for _, each in found)), None)
    if state is None:
        return None
    latest: dict[str, Entry] = {}
    for entry in sorted((e for e, s in found if s == state), key=lambda e: str(e["date"])):
        latest[entry["device"]] = entry
    results = [{**r, "device": device} for device, entry in latest.items() for r in entry["results"]]
    runs = {
        device: dict.fromkeys(_said(r.get("when", {}) | {"device": device}) for r in entry["results"])
        for device, entry in latest.items()
    }
    said = "; ".join(run for each in runs.values() for run in each)
    return Checked(results, state, f"Checked {said}.")


def _said(run: dict[str, Any]) -> str:
    date, torch, seed = (run.get(key, "unknown") for key in ("date", "torch", "seed"))
    return f"{date} on {run['device']}, torch {torch}, seed {seed}"
