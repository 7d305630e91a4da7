"""Runs the examination over many operators, in processes that may die without ending the run."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from tests.opinfo.examine import Finding, Result, Settings
from tests.opinfo.exceptions import EXCEPTIONS, MADE_WITH

ROOT = Path(__file__).parent.parent.parent
TIMEOUT = 180.0
"""Seconds without a word after which an operator is said to hang."""
SHIFT = 60
"""Operators that a process examines before another takes over: compiled code and operators stay in memory."""


class Died(Exception):
    """A worker has crashed, or was ended since it hung."""


class Worker:
    """A process, started when first needed."""

    def __init__(self) -> None:
        ours, theirs = Pipe()
        self.pipe: Connection[Any, Any] = ours
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
            # Graphs on disk know an operator by its name alone, and ours are numbered.
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        }
        environment.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # as in tests/conftest.py
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.opinfo.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        self.doing = "starting"
        self.names: list[str] = self._hear("names")
        self.left = SHIFT

    def examine(self, name: str, settings: Settings) -> Result:
        self.left -= 1
        with contextlib.suppress(OSError):  # it is dead already: what is heard of it says how it died
            self.pipe.send((name, settings))
        result: Result = self._hear("done")
        return result

    def _hear(self, wanted: str) -> Any:
        while True:
            if not self.pipe.poll(TIMEOUT):
                self.end()
                raise Died(f"hangs for {TIMEOUT:.0f} s in {self.doing}")
            try:
                kind, what = self.pipe.recv()
            except (EOFError, OSError):
                code = self.process.wait()
                ended = signal.Signals(-code).name if code < 0 else f"exit status {code}"
                raise Died(f"crashes with {ended} in {self.doing}") from None
            if kind == wanted:
                return what
            self.doing = what

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.pipe.close()


@dataclass
class Report:
    """What a run has found out."""

    settings: Settings
    results: list[Result] = field(default_factory=list)

    def failures(self) -> Iterator[tuple[Result, Finding]]:
        """The findings that no exception explains."""
        for result in self.results:
            for finding in result.findings:
                if (result.name, finding.check, finding.form) not in EXCEPTIONS:
                    yield result, finding

    def unneeded(self) -> list[tuple[str, str, str]]:
        """The exceptions that explain nothing any more, as far as this run can tell: it tried everything, with the
        PyTorch that the list was made with."""
        if self.settings != Settings() or not torch.__version__.startswith(MADE_WITH):
            return []
        found = {(r.name, f.check, f.form) for r in self.results for f in r.findings}
        tried = {r.name for r in self.results if not r.left_out}
        return [key for key in EXCEPTIONS if key[0] in tried and key not in found]

    def complaints(self) -> list[str]:
        """What there is to fix, a line each."""
        found = [f"{result.name}, {f.form} {f.check}: {f.text}" for result, f in self.failures()]
        for name, check, form in self.unneeded():
            found.append(f"{name}, {form} {check}: its entry in tests/opinfo/exceptions.py is no longer needed")
        return found


def part_of(name: str, parts: int) -> int:
    """The part, from 1 on, that an operator belongs to: always the same."""
    return zlib.crc32(name.encode()) % parts + 1


def run(
    settings: Settings,
    *,
    choose: Callable[[str], bool] = lambda name: True,
    jobs: int = 2,
    show: Callable[[Result, int, int], None] = lambda result, done, of: None,
) -> Report:
    """Examine the operators that are chosen, `jobs` at a time."""
    first = Worker()
    names = [n for n in first.names if choose(n)]
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    report = Report(settings)
    turn = threading.Lock()

    def work(worker: Worker | None) -> None:
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                break
            try:
                worker = worker or Worker()
                result = worker.examine(name, settings)
                if worker.left <= 0:
                    worker.end()
                    worker = None
            except Died as end:
                worker = None
                where = str(end).split(" in ")[-1]
                form = next((f for f in settings.forms if where.startswith(f)), "transparent")
                result = Result(name, checks=1)
                result.find(form, "alive", f"the process {end}")
            with turn:
                report.results.append(result)
                show(result, len(report.results), len(names))
        if worker is not None:
            worker.end()

    with ThreadPoolExecutor(jobs) as pool:
        for ended in [pool.submit(work, first if i == 0 else None) for i in range(jobs)]:
            ended.result()
    report.results.sort(key=lambda r: r.name)
    return report


def chosen(only: Sequence[str], part: tuple[int, int]) -> Callable[[str], bool]:
    """Whether an operator belongs to a run: named, itself or before its variant, and in the part that is asked for."""

    def choose(name: str) -> bool:
        named = not only or name in only or name.partition(":")[0] in only
        return named and (part[1] == 1 or part_of(name, part[1]) == part[0])

    return choose
