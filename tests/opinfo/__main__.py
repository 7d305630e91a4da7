"""The command line: `python -m tests.opinfo`."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.opinfo.checks import CHECKS
from tests.opinfo.examine import FORMS, Result, Settings
from tests.opinfo.running import Report, chosen, run


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def part(text: str) -> tuple[int, int]:
    which, of = map(int, text.split("/"))
    if not 1 <= which <= of:
        raise ValueError(text)
    return which, of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo", description=sys.modules["tests.opinfo"].__doc__)
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="these operators, and their variants")
    parser.add_argument("--part", type=part, default=(1, 1), metavar="K/N", help="a fixed part of the operators")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--forms", type=words, default=FORMS, help=f"of {','.join(FORMS)}")
    parser.add_argument("--checks", type=words, default=Settings().checks, help=f"of refusals,{','.join(CHECKS)}")
    parser.add_argument("--samples", type=int, default=Settings().samples, help="calls for each operator and dtype")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found out")
    options = parser.parse_args()
    settings = Settings(options.device, options.forms, options.checks, options.samples)
    began = time.monotonic()
    report = run(settings, choose=chosen(options.only, options.part), jobs=options.jobs, show=show)
    seconds = time.monotonic() - began
    if options.json:
        options.json.write_text(json.dumps(stored(report, seconds), indent=1) + "\n")
    return conclude(report, seconds)


def show(result: Result, done: int, of: int) -> None:
    what = f"left out: {result.left_out}" if result.left_out else f"{result.checks} checks"
    print(f"[{done}/{of}] {result.name}: {what}, {result.seconds:.1f} s", flush=True)
    for found in result.findings:
        more = f" (and {len(found.samples) - 1} more)" if len(found.samples) > 1 else ""
        print(f"    {found.form} {found.check}, {found.samples[0]}{more}: {found.text}", flush=True)


def counts(report: Report) -> dict[str, int]:
    failing = {result.name for result, _ in report.failures()}
    return {
        "operators": len(report.results),
        "left out": sum(bool(r.left_out) for r in report.results),
        "without a finding": sum(not r.left_out and r.name not in failing for r in report.results),
        "checks": sum(r.checks for r in report.results),
        "findings": sum(1 for _ in report.failures()),
        **{f"refused: {why}": sum(why in r.refused for r in report.results) for why in ("alias", "write", "random")},
    }


def stored(report: Report, seconds: float) -> dict[str, Any]:
    """What is kept of a run."""
    findings: dict[str, list[dict[str, Any]]] = {}
    for result, finding in report.failures():
        findings.setdefault(result.name, []).append(asdict(finding))
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "device": report.settings.device,
        "forms": report.settings.forms,
        "checks": report.settings.checks,
        "samples": report.settings.samples,
        "seconds": round(seconds),
        "counts": counts(report),
        "left out": {r.name: r.left_out for r in report.results if r.left_out},
        "findings": findings,
        "unneeded exceptions": report.unneeded(),
    }


def conclude(report: Report, seconds: float) -> int:
    complaints = report.complaints()
    print(f"\n{', '.join(f'{n} {what}' for what, n in counts(report).items())}; {seconds:.0f} s")
    for line in complaints:
        print(line[:160])
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
