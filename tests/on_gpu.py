"""The tests that need a GPU, each file in a process of its own, and what came of them.

    python tests/on_gpu.py [--json FILE] [--within SECONDS] [--at-once N] [FILE …]

Where the time is short, files whose results are missing or old go first, and what is not begun after so many seconds
keeps what it had. tests/on_gpu.json says of each file what came of it, when, and on which sources: what has changed
since is told by `python tests/on_gpu.py --stale`, which needs no GPU, and by `python -m release`.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tests" / "on_gpu.json"
FILES = ("tests/cuda/test_*.py", "tests/kit/build/test_cuda.py")
LONGEST = 540
"""Seconds that a file may take."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="these alone; else all")
    parser.add_argument("--json", type=Path, default=RESULTS, help="the file for the results")
    parser.add_argument("--within", type=float, default=float("inf"), help="begin no file after so many seconds")
    parser.add_argument("--at-once", type=int, default=4, help="how many files run side by side")
    parser.add_argument("--stale", action="store_true", help="run nothing; say what has changed since each file ran")
    asked = parser.parse_args()
    stored = json.loads(asked.json.read_text(encoding="utf-8")) if asked.json.exists() else {"trees": {}, "rows": {}}
    if asked.stale:
        found = list(stale(ROOT, stored))
        print("\n".join(found) or "all results are those of the sources at hand")
        return 1 if found else 0
    chosen = asked.files or names(ROOT)
    left = order(ROOT, stored, chosen)
    tree = sources(ROOT)
    mark = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:12]
    about, end = {**_about(), "tree": mark}, time.monotonic() + asked.within
    with ThreadPoolExecutor(asked.at_once) as pool:
        begun = {
            pool.submit(lambda name: run(ROOT, name) if time.monotonic() < end else None, name): name for name in left
        }
        for done in as_completed(begun):
            name, row = begun[done], done.result()
            if row is None:
                print(f"{name}: there was no time left", flush=True)
                continue
            stored["rows"][name] = {**about, "test": _digest([ROOT / name]), **row}
            stored["trees"][mark] = tree
            write(asked.json, stored)
            print(f"{name}: {told(row)}", flush=True)
    return 1 if any(row["failures"] for row in stored["rows"].values()) else 0


def order(root: Path, stored: Mapping[str, Any], chosen: list[str]) -> list[str]:
    """What to run first: what has no results, then what has old ones, the longest first; else as they were named."""
    rows = stored["rows"]

    def place(name: str) -> tuple[bool, bool, float]:
        return name in rows, not list(_changed(root, stored, name)), -rows.get(name, {}).get("seconds", 0)

    return sorted(chosen, key=place)


def names(root: Path) -> list[str]:
    """The files that need a GPU, from the root on."""
    return [str(file.relative_to(root)) for pattern in FILES for file in sorted(root.glob(pattern))]


def told(row: Mapping[str, Any]) -> str:
    """What came of a file, in a line, and its failures below."""
    counts = f"{row['passed']} passed, {len(row['failures'])} failed, {len(row['skipped'])} skipped"
    return "\n    ".join([f"{counts}, {row['seconds']} s", *row["failures"]])


def sources(root: Path) -> dict[str, str]:
    """The digest of each part of the package: its folders, each operator's, and each floor of the toolkit."""
    package = root / "src" / "opwright"
    within = [package / "ops", package / "kit"]
    parts = [p for p in package.iterdir() if p.is_dir() and p not in within]
    parts += [p for folder in within for p in folder.iterdir()]
    return {str(part.relative_to(package)): _digest(_files(part)) for part in sorted(parts) if any(_files(part))}


def _files(part: Path) -> list[Path]:
    found = sorted(part.rglob("*")) if part.is_dir() else [part]
    return [file for file in found if file.is_file() and "__pycache__" not in file.parts]


def _digest(files: list[Path]) -> str:
    found = hashlib.sha256()
    for file in files:
        found.update(f"{file.name}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return found.hexdigest()[:12]


def stale(root: Path, stored: Mapping[str, Any]) -> Iterator[str]:
    """What to know before one believes the stored results, a line for each file that has something to say."""
    for name in names(root):
        row = stored["rows"].get(name)
        if row is None:
            yield f"{name} has not run"
            continue
        if row["failures"]:
            yield f"{name}: {len(row['failures'])} failed"
        changed = [*_changed(root, stored, name)]
        if changed:
            yield f"{name} ran on {row['date']}, and since then {', '.join(changed)} changed"


def _changed(root: Path, stored: Mapping[str, Any], name: str) -> Iterator[str]:
    """What has changed since a file ran: itself, and parts of the package."""
    row = stored["rows"].get(name)
    if row is None:
        return
    if row["test"] != _digest([root / name]):
        yield "the file"
    then, now = stored["trees"].get(row["tree"], {}), sources(root)
    yield from (part for part in sorted({*then, *now}) if then.get(part) != now.get(part))


def run(root: Path, name: str) -> dict[str, Any]:
    """Run a file, and give what came of it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(root / "src"), str(root)))}
    with tempfile.TemporaryDirectory() as place:
        report, log = Path(place, "report.xml"), Path(place, "log")
        command = [sys.executable, "-m", "pytest", "-c", "tests/cuda/pytest.ini", f"--rootdir={root}"]
        command += [f"--confcutdir={root}", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", name]
        start = time.monotonic()
        with log.open("w") as out:
            try:
                subprocess.run(command, cwd=root, env=environment, stdout=out, stderr=out, timeout=LONGEST, check=False)
            except subprocess.TimeoutExpired:
                print(f"{name}: ended after {LONGEST} s", file=out)
        seconds = round(time.monotonic() - start)
        if report.exists():
            found = read(report)
        else:
            found = {"passed": 0, "skipped": [], "failures": [f"{name} ended without a report"]}
        if found["failures"]:
            print(log.read_text(encoding="utf-8", errors="replace")[-6000:], flush=True)
        return {"seconds": seconds, **found}


def read(report: Path) -> dict[str, Any]:
    """What pytest's report says: how many passed, which were skipped and why, and which failed."""
    cases = list(xml.parse(report).getroot().iter("testcase"))
    failures = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = [c for c in cases if c.find("skipped") is not None]
    why = {c: c.find("skipped").get("message", "") for c in skipped}  # type: ignore[union-attr]
    return {
        "passed": len(cases) - len({*failures, *skipped}),
        "skipped": [f"{_name(c)}: {why[c]}" for c in skipped],
        "failures": sorted({_name(c) for c in failures}),
    }


def _name(case: xml.Element) -> str:
    place, name = case.get("classname", ""), case.get("name", "")
    return (
        f"{place.replace('.', '/')}.py::{name}" if place else f"{name.replace('.', '/')}.py"
    )  # a file that does not load


def _about() -> dict[str, str]:
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU here, so nothing was run")
    return {
        "gpu": torch.cuda.get_device_name(), "torch": str(torch.__version__), "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }  # fmt: skip


def write(file: Path, stored: dict[str, Any]) -> None:
    """Store the results, without trees that no row is of."""
    used = {row["tree"] for row in stored["rows"].values()}
    stored["trees"] = {mark: tree for mark, tree in sorted(stored["trees"].items()) if mark in used}
    stored["rows"] = dict(sorted(stored["rows"].items()))
    file.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
