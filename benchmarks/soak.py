"""No false alarm in operators that are right, with many seeds: the properties of the check that depend on values.

    python benchmarks/soak.py [--device cuda] [--seeds N] [--share K] [--processes N] [--seconds S] [--json FILE] [OP …]

The operators are those of tests/awkward_ops and of the library. Every seed draws the numbers of every case anew; of the
cases a seed tries one in K, chosen by the seed, so that 200 seeds try each case some 200 / K times. What is not begun
after S seconds is left out, and the stored file says how far it came.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
PROPERTIES = ("forward", "special", "gradients")
AT_ONCE = 10
"""Seeds that a process tries of an operator before it takes another."""
MEMORY = 10 << 30
"""What a process may take."""


@dataclass(frozen=True)
class Unit:
    """Some seeds of one operator."""

    op: str
    seeds: range
    share: int
    device: str


@dataclass(frozen=True)
class Tried:
    unit: Unit
    cases: int
    alarms: list[dict[str, Any]]
    seconds: float


def names(device: str) -> list[str]:
    """All operators that are right: those of the library that have kernels there, by their names, and awkward ones as
    theme/name, which have none on a GPU."""
    from tests.awkward_ops import AWKWARD
    from tests.library import OPERATORS

    own = [op.name for op in OPERATORS if any(k.device == device for rung in op.ladder for k in rung.kernels)]
    return [*own, *(f"{theme}/{name}" for theme, name in AWKWARD)]


def operator(name: str) -> Any:
    from tests.awkward_ops import operator as awkward
    from tests.library import OPERATORS

    return awkward(*name.split("/")) if "/" in name else next(op for op in OPERATORS if op.name == name)


_at = [""]
"""The case that this process is at."""


def _begin() -> None:
    """Once in a process."""
    threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    """End the process by name where a case takes too much memory: else the system ends it without a word."""
    page = os.sysconf("SC_PAGE_SIZE")
    while True:
        if int(Path("/proc/self/statm").read_text().split()[1]) * page > MEMORY:
            print(f"over {MEMORY >> 30} GiB: {_at[0]}", flush=True)
            os._exit(1)
        time.sleep(0.1)


def attempt(unit: Unit) -> Tried:
    """Try seeds of an operator, in this process: what is right ends no process."""
    import torch

    from opwright.kit.check import property, run
    from opwright.kit.check.cases import Subject
    from opwright.kit.check.report import Failure

    torch.set_num_threads(1)
    start, count = time.perf_counter(), 0
    alarms: list[dict[str, Any]] = []
    for seed in unit.seeds:
        for rung in run.rungs(operator(unit.op)):
            subject = Subject(rung, unit.device, seed)
            for name in PROPERTIES:
                for case in property.cases_of(subject, name)[1]:
                    if zlib.crc32(f"{seed}/{rung.name}/{name}/{case.id}".encode()) % unit.share:
                        continue
                    _at[0] = f"{unit.op}: {rung.name} {name} {case.id}, seed {seed}"
                    outcome = property.attempt(subject, name, case)
                    count += outcome is None or isinstance(outcome, Failure)
                    if isinstance(outcome, Failure):
                        told = {"op": unit.op, "rung": rung.name, "property": name, "case": case.id, "seed": seed}
                        alarms.append({**told, "message": outcome.message})
    return Tried(unit, count, alarms, time.perf_counter() - start)


def units(chosen: Iterable[str], seeds: int, share: int, device: str) -> list[Unit]:
    """The work, so ordered that whatever is left out at the end is the last seeds of all operators."""
    blocks = [range(first, min(first + AT_ONCE, seeds)) for first in range(0, seeds, AT_ONCE)]
    return [Unit(op, block, share, device) for block in blocks for op in chosen]


def _as_they_come(pool: ProcessPoolExecutor, work: list[Unit], processes: int, end: float) -> Iterator[Tried]:
    """What units find, those at work at the end included; none is begun after it."""
    left = iter(work)
    busy = {pool.submit(attempt, unit) for unit in islice(left, 2 * processes)}
    while busy:
        done, busy = wait(busy, return_when=FIRST_COMPLETED)
        if time.monotonic() < end:
            busy |= {pool.submit(attempt, unit) for unit in islice(left, len(done))}
        yield from (future.result() for future in done)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*", metavar="OP")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--share", type=int, default=8)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=90 * 60)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    chosen = given.ops or names(given.device)
    for op in chosen:
        operator(op).build(given.device)
    start = time.monotonic()
    tried: dict[str, dict[str, Any]] = {op: {"op": op, "seeds": 0, "cases": 0, "seconds": 0.0} for op in chosen}
    alarms: list[dict[str, Any]] = []
    work = units(chosen, given.seeds, given.share, given.device)
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn"), initializer=_begin) as pool:
        for done, found in enumerate(_as_they_come(pool, work, given.processes, start + given.seconds), 1):
            row = tried[found.unit.op]
            row["seeds"] += len(found.unit.seeds)
            row["cases"] += found.cases
            row["seconds"] = round(row["seconds"] + found.seconds, 1)
            alarms += found.alarms
            for alarm in found.alarms:
                print(json.dumps(alarm), flush=True)
            print(f"{done} of {len(work)}: {found.unit.op} {found.unit.seeds}, {len(alarms)} alarms", file=sys.stderr)
    result = {
        **about(), "device": given.device, "share": given.share, "seconds": round(time.monotonic() - start),
        "processes": given.processes, "cases": sum(row["cases"] for row in tried.values()), "alarms": alarms,
        "rows": list(tried.values()),
    }  # fmt: skip
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    least = min(row["seeds"] for row in tried.values())
    print(f"{len(alarms)} alarms in {result['cases']} cases of {len(tried)} operators, the first {least} seeds of all")
    return 1 if alarms else 0


def about() -> dict[str, Any]:
    from opwright.kit.bench import machine

    return {"machine": machine.machine(), "versions": machine.versions(), "date": machine.today()}


if __name__ == "__main__":
    sys.exit(main())
