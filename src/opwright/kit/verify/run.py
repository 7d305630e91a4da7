"""Running the check: which properties of which rungs, in which process, and what becomes of their cases."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from opwright.kit.define import LOADED
from opwright.kit.op import Op
from opwright.kit.verify import ON_CPU, ON_GPU, PROPERTIES, properties
from opwright.kit.verify.cases import Subject
from opwright.kit.verify.process import Gone, Stranded, Worker, failure_from
from opwright.kit.verify.report import Failure, Report, Result

MOST_FAILURES = 3
"""After so many failures of a property its further cases tell nothing new."""
APART = ("rejects", "sanitize", "bands")
"""Properties that only a process of their own can try."""
LONE = ("sanitize", "bands")
"""Properties whose process can try no other."""
ONCE = ("gradcheck", "opcheck", "export", "leak", "rejects", "large", "sanitize", "sanitizer")
"""Properties that further seeds tell little more about."""

Progress = Callable[[str, str, int], None]


def rungs(op: Op[..., Any]) -> list[Op[..., Any]]:
    """The operator, its gradient, and what lies above that if it has a kernel."""
    if op.has_rung:
        _ = op.backward
    return [rung for i, rung in enumerate(op.ladder) if i < 2 or rung.kernels]


def run(
    operators: Sequence[Op[..., Any]],
    *,
    device: str = "cpu",
    seed: int = 0,
    thorough: float | None = None,
    only: Sequence[str] = (),
    case: str | None = None,
    sanitize: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Check operators; with several, two at a time."""
    for name in only:
        if name not in PROPERTIES:
            raise ValueError(f"there is no property {name!r}; the properties are {', '.join(PROPERTIES)}")
    for op in operators:
        if not isinstance(op, Op):
            raise TypeError(f"check: its argument must be an operator, got {type(op).__name__}")
    gpu = torch.device(device).type == "cuda"
    if gpu and not torch.cuda.is_available():
        raise RuntimeError("check: there is no GPU here; `opwright doctor` says why")
    left_out = {*(ON_CPU if gpu else ON_GPU), *(() if sanitize else ("sanitize", "sanitizer"))}
    wanted = [p for p in PROPERTIES if (p in only if only else p not in left_out)]
    for op in operators:
        _build(op, torch.device(device).type)
    order = Order(device, seed, thorough, case, wanted, progress or (lambda op, name, cases: None))
    if len(operators) > 1 and _cores() > 1:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(order.check, operators))
    else:
        found = [order.check(op) for op in operators]
    return Report([r for results in found for r in results], seed, device)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _build(op: Op[..., Any], device: str) -> None:
    """Build what will be needed, here, where its progress and its errors are seen."""
    from opwright.kit.verify import guard

    for rung in rungs(op):
        for kernel in rung.kernels:
            if kernel.library is not None and kernel.device == device:
                kernel.ready(rung)
    if device == "cpu":
        guard.unavailable()


class Order:
    """What is asked of every operator in one check."""

    def __init__(
        self, device: str, seed: int, thorough: float | None, case: str | None, wanted: list[str], progress: Progress
    ) -> None:
        self.device, self.seed, self.thorough, self.case, self.wanted = device, seed, thorough, case, wanted
        self.progress = progress

    def check(self, op: Op[..., Any]) -> list[Result]:
        """All results of one operator."""
        start = time.monotonic()
        wanted = [(i, rung, name) for i, rung in enumerate(rungs(op)) for name in self.wanted]
        results = {(rung.name, name): self._one(op, i, rung, name, self.seed) for i, rung, name in wanted}
        seed = self.seed
        while self.thorough is not None and time.monotonic() - start < self.thorough:
            seed += 1
            for i, rung, name in wanted:
                known = results[rung.name, name]
                if name in ONCE or known.failures or known.cases == 0:
                    continue
                more = self._one(op, i, rung, name, seed)
                known.cases += more.cases
                known.failures += more.failures
                known.seconds = round(known.seconds + more.seconds, 3)
                if time.monotonic() - start >= self.thorough:
                    break
        return list(results.values())

    def _one(self, op: Op[..., Any], index: int, rung: Op[..., Any], name: str, seed: int) -> Result:
        result = Result(rung.name, name)
        start = time.perf_counter()
        worker = _worker(name)
        try:
            worker.define(op)
            self._in_worker(worker, op, index, result, seed)
        except Stranded as e:
            if name in APART:
                result.skipped = f"it needs a process of its own: {e}"
            else:
                self._here(rung, result, seed)
        if result.cases == 0 and result.skipped is None:
            result.skipped = "no case applies"
        result.seconds = round(time.perf_counter() - start, 3)
        for failure in result.failures:
            failure.replay = f"{_command(op)} {failure.replay}" + _flags(self.device, name)
        return result

    def _here(self, rung: Op[..., Any], result: Result, seed: int) -> None:
        """In this process, for operators that cannot leave it."""
        subject = Subject(rung, self.device, seed, self.thorough is not None)
        result.skipped, cases = properties.cases_of(subject, result.property)
        for case in cases:
            if not properties.chosen(subject, case, self.case):
                continue
            self._count(result, properties.attempt(subject, result.property, case))
            if len(result.failures) >= MOST_FAILURES:
                break

    def _count(self, result: Result, outcome: Failure | bool | None) -> None:
        if outcome is not None:
            result.cases += 1
        if isinstance(outcome, Failure):
            result.failures.append(outcome)
        self.progress(result.op, result.property, result.cases)

    def _in_worker(self, worker: Worker, op: Op[..., Any], index: int, result: Result, seed: int) -> None:
        done: list[str] = []
        while True:
            current: dict[str, Any] = {}
            try:
                answer = worker.ask(
                    home=op.home.qualname, rung=index, property=result.property, device=self.device, seed=seed,
                    thorough=self.thorough is not None, case=self.case, done=done,
                )  # fmt: skip
                while "end" not in answer:
                    if "error" in answer:
                        raise RuntimeError(f"{result.op}: {result.property}: {answer['error']}: {answer['message']}")
                    if "case" in answer:
                        current = answer
                        done.append(answer["case"])
                    else:
                        told = answer["failure"]
                        self._count(result, failure_from(told) if told else (True if answer["counted"] else None))
                        if len(result.failures) >= MOST_FAILURES:
                            worker.stop()
                            return
                        if answer.get("leaves"):  # its GPU is of no more use
                            worker.stop()
                            worker.define(op)
                            break
                    answer = worker.listen()
                else:
                    result.skipped = answer["skipped"]
                    return
            except Gone as e:
                if not current:
                    raise RuntimeError(f"{result.op}: the check itself failed at {result.property}: {e}") from None
                self._count(result, _crash(result, current, str(e), seed))
                if len(result.failures) >= MOST_FAILURES:
                    return
                worker.define(op)


def _crash(result: Result, case: dict[str, Any], message: str, seed: int) -> Failure:
    return Failure(
        property=result.property,
        op=result.op,
        dtype=case["dtype"],
        layout=case["layout"],
        sample=f"{case['sample']}: case {case['case']}",
        message=message,
        replay=f"--only {result.property} --case {result.op}:{case['case']} --seed {seed}",
    )


def _command(op: Op[..., Any]) -> str:
    """The words that name the operator to `opwright check`."""
    home = op.home
    if home.__module__.startswith("opwright."):
        return f"opwright check {home.name}"
    if home.file is not None and (home.__module__.startswith(f"{LOADED}.") or os.path.isfile(home.file)):
        return f"opwright check {os.path.relpath(home.file)}"
    return "opwright check PATH"


def _flags(device: str, name: str) -> str:
    return (f" --device {device}" if device != "cpu" else "") + (" --sanitize" if name.startswith("sanitize") else "")


_workers: dict[tuple[int, str], Worker] = {}
_lock = threading.Lock()


def _worker(name: str) -> Worker:
    """This thread's worker; some properties have one of their own."""
    from opwright.kit.verify import sanitize

    key = (threading.get_ident(), name if name in LONE else "")
    with _lock:
        if key not in _workers:
            _workers[key] = Worker(sanitize.environment() if name == "sanitize" else None)
        return _workers[key]


@atexit.register
def _stop() -> None:
    for worker in _workers.values():
        worker.stop()
