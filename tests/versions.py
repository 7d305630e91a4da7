"""The tests under other torch versions, each in a virtual environment of its own.

    python tests/versions.py 2.10.0 2.15.0 [--place FOLDER] [--json FILE] [TEST …]

An environment (FOLDER/.venv-torch-VERSION) is made when it is first needed, which downloads some gigabytes, and kept.
The package is used from its source. The summary of each version goes into tests/versions.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "tests" / "versions.json"
PACKAGES = (
    "cloudpickle",
    "hypothesis",
    "mypy",
    "ninja",
    "numpy",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "rich",
    "typer",
)
TESTS = (
    "tests/test_api.py",
    "tests/kit/test_*.py",
    "tests/kit/distributed",
    "tests/kit/build",
    "tests/graphs",
    "tests/nn",
    "tests/ops",
    "tests/tensors",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arguments", nargs="+", metavar="VERSION|TEST", help="versions of torch; files and folders")
    parser.add_argument("--place", type=Path, default=ROOT, help="the folder of the environments")
    parser.add_argument("--json", type=Path, default=RESULTS, help="the file for the summary")
    asked = parser.parse_args()
    versions = [a for a in asked.arguments if a[0].isdigit()]
    tests = [a for a in asked.arguments if not a[0].isdigit()]
    failed = 0
    for version in versions:
        python = prepare(version, asked.place.resolve() / f".venv-torch-{version}")
        found = run(version, python, tests)
        if not tests:  # the whole
            known = json.loads(asked.json.read_text(encoding="utf-8")) if asked.json.exists() else {}
            text = json.dumps(dict(sorted({**known, version: found}.items())), indent=1, ensure_ascii=False)
            asked.json.write_text(text + "\n", encoding="utf-8")
        say(version, f"{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped")
        failed += found["failed"]
    return 1 if failed else 0


def prepare(version: str, place: Path) -> Path:
    """Python in the environment of a torch version, made and filled if need be."""
    python, ready = place / "bin" / "python", place / "ready"
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    wanted = [f"torch=={version}", "setuptools>=77", *(p for p in pinned if p.partition("==")[0] in PACKAGES)]
    if not ready.exists() or ready.read_text(encoding="utf-8").split() != wanted:
        say(version, f"making {place}: torch comes with CUDA, some gigabytes, so it takes minutes")
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", place], check=True)
        # torch by its exact version beside every package, so that none of them brings another.
        subprocess.run([python, "-m", "pip", "install", "--no-cache-dir", *wanted], check=True)
        ready.write_text("\n".join(wanted), encoding="utf-8")
    return python


def run(version: str, python: Path, tests: list[str]) -> dict[str, Any]:
    """Build the package's own C++ for a torch version, run the tests, and give what came of them."""
    home = python.parent.parent
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    environment["OPWRIGHT_CACHE_DIR"] = str(home / "opwright-cache")
    environment["OPWRIGHT_NATIVE"] = "1"  # to try a newer torch is what this is for
    describe = "import torch; print(torch.__version__)"
    said = subprocess.run([python, "-c", describe], check=True, capture_output=True, text=True, env=environment)
    if said.stdout.strip().partition("+")[0] != version:
        raise SystemExit(f"{home} has torch {said.stdout.strip()}, not {version}: remove it and run this again")
    say(version, "building")
    subprocess.run([python, "-m", "opwright", "build"], check=True, env=environment, cwd=ROOT)
    say(version, "testing")
    chosen = tests or [str(f.relative_to(ROOT)) for pattern in TESTS for f in sorted(ROOT.glob(pattern))]
    report = home / "report.xml"
    report.unlink(missing_ok=True)
    command: list[str | Path] = [python, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
    command += ["-m", "not slow and not soak", f"--junitxml={report}", *chosen]
    subprocess.run(command, check=False, env=environment, cwd=ROOT)
    if not report.exists():
        raise SystemExit(f"torch {version}: pytest ended without a report")
    return {"torch": said.stdout.strip(), **read(report)}


def read(report: Path) -> dict[str, Any]:
    """The counts and the names of failures in pytest's report."""
    cases = list(xml.parse(report).getroot().iter("testcase"))
    names = {kind: [_name(c) for c in cases if c.find(kind) is not None] for kind in ("failure", "error", "skipped")}
    failures = sorted({*names["failure"], *names["error"]})
    return {
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "passed": len(cases) - len(failures) - len(names["skipped"]),
        "failed": len(failures),
        "skipped": len(names["skipped"]),
        "failures": failures,
    }


def _name(case: xml.Element) -> str:
    return f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"


def say(version: str, what: str) -> None:
    print(f"torch {version}: {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
