"""Measuring many cases, each in a process that may fail without the rest."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from opwright.kit.bench import limits as limits_of
from opwright.kit.bench.cases import cases, families
from opwright.kit.bench.measure import blank
from opwright.kit.bench.results import Results
from opwright.kit.op import Op
from opwright.kit.spec.measured import Variant

STARTING = 300.0
"""Seconds more that a worker has until its first case: it may have kernels to build."""
Tell = Callable[[str], None]
Keep = Callable[[], None]


@dataclass(frozen=True)
class Asked:
    """What to measure."""

    operators: Sequence[Op[..., Any]]
    paths: Sequence[str] = ()
    """Files and folders that define operators which the library does not."""
    dtypes: Sequence[str] = ("float32",)
    devices: Sequence[str] = ("cpu",)
    sweep: bool = True
    """Whether all sizes are measured, or those alone that stand for their family."""
    families: int | None = None
    """How many families of each operator; None: all."""
    seconds: float = 1.0
    """For each pass of a case, all variants together."""
    limit: float = 180.0
    """Seconds after which a case is given up."""
    renew_limits: bool = False
    """Whether the machine's limits are measured again though they are known."""
    without: Sequence[str] = ()
    """Variants that are not measured."""
    only: Sequence[tuple[str, str, str, str]] | None = None
    """(op, case, dtype, device) to measure, and nothing else."""

    compile_sizes: bool = True
    """Whether the compiled reference is measured at every size; compiling takes longer than all the rest."""

    def jobs(self) -> list[Job]:
        """One for each operator, dtype and device."""
        each = itertools.product(self.operators, self.devices, self.dtypes)
        return [job for op, device, dtype in each if (job := self._job(op, device, dtype)).cases]

    def _job(self, op: Op[..., Any], device: str, dtype: str) -> Job:
        kept = [f.name for f in families(op, device)][: self.families]
        found = Job(op, dtype, device, [])
        for case in cases(op, device):
            stands = case.size == case.family.at
            # The smallest size is always there: on the CPU it tells what a call costs its caller.
            asked = self.sweep or stands or case.size == min(case.family.sizes)
            if self.only is not None:
                asked = (op.name, case.name, dtype, device) in self.only
            if asked and case.family.name in kept:
                found.cases.append(case.name)
                compiled = case.family.compiled and (stands or self.compile_sizes)
                found.without[case.name] = [*self.without, *([] if compiled else ["compiled"])]
        return found


@dataclass
class Job:
    """The cases of one operator for a dtype on a device."""

    op: Op[..., Any]
    dtype: str
    device: str
    cases: list[str]
    without: dict[str, list[str]] = field(default_factory=dict)


class Gone(Exception):
    """A worker ended before its job did."""


class Worker:
    """A process at work on one job."""

    def __init__(self, job: dict[str, Any], log: IO[bytes]) -> None:
        source = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "opwright.kit.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # a Ctrl-C is ours to handle
            # Inductor's own pool of processes takes longer to start than these kernels to compile.
            env={"TORCHINDUCTOR_COMPILE_THREADS": "1", **os.environ, "PYTHONPATH": path},
        )
        self.events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):
            for line in self.process.stdout:
                self.events.put(json.loads(line))
        self.events.put(None)

    def next(self, seconds: float) -> dict[str, Any] | None:
        """The next event; None when the worker is done."""
        try:
            event = self.events.get(timeout=max(seconds, 0.01))
        except queue.Empty:
            raise TimeoutError from None
        if event is None:
            code = self.process.wait()
            if code:
                raise Gone(f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit status {code}")
        return event

    def end(self) -> None:
        """End it and what it started (compilers)."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def working(job: dict[str, Any]) -> Iterator[tuple[Worker, Callable[[], str]]]:
    """A worker, and what it last wrote to its stderr."""
    with tempfile.TemporaryFile() as log:
        worker = Worker(job, log)

        def said() -> str:
            log.seek(0)
            lines = [x.strip() for x in log.read().decode(errors="replace").splitlines() if x.strip()]
            return next((x for x in reversed(lines) if not x.startswith("USDT")), "")

        try:
            yield worker, said
        finally:
            worker.end()


def run(asked: Asked, results: Results, *, tell: Tell = lambda text: None, keep: Keep = lambda: None) -> int:
    """Measure what is asked into `results`; `keep` is called after each case. Returns the number of the run."""
    number = results.begin()
    jobs = asked.jobs()
    for device in dict.fromkeys(j.device for j in jobs):
        if device != "cpu" and not torch.cuda.is_available():
            raise ValueError(f"bench: there is no {device} device here; leave --device out, or give cpu")
        tell(f"how fast {device} copies and multiplies")
        results.limits[device] = _limits(device, asked, results.machine).to_json()
    for job in jobs:
        results.operators[job.op.name] = about(job.op)
        _run(job, asked, results, number, tell, keep)
        host_time(results, number)
        keep()
    return number


def about(op: Op[..., Any]) -> dict[str, Any]:
    """What a report says of an operator that it cannot load."""
    names = [family.name for family in families(op)]
    return {"qualname": op.qualname, "schema": op.schema, "families": names, "doc": inspect.cleandoc(op.__doc__ or "")}


def _limits(device: str, asked: Asked, about: dict[str, Any]) -> limits_of.Limits:
    who = about["gpu"] if device.startswith("cuda") else f"{about['cpu']}, {about['threads']} threads"
    key = f"{who}, torch {torch.__version__}"

    def ask(what: str) -> Any:
        with working({"do": "limits", "device": device, "what": what}) as (worker, _):
            try:
                event = worker.next(60)
                return event["answer"] if event else None
            except (Gone, TimeoutError):
                return None

    return limits_of.limits(key, tuple(asked.dtypes), ask, again=asked.renew_limits)


def _run(job: Job, asked: Asked, results: Results, number: int, tell: Tell, keep: Keep) -> None:
    """Run a job to its end, with a new worker after each that fails."""
    left = list(job.cases)
    while left:
        order = {
            "do": "measure",
            "op": job.op.qualname,
            "paths": list(asked.paths),
            "dtype": job.dtype,
            "device": job.device,
            "cases": left,
            "without": job.without,
            "seconds": asked.seconds,
            "limits": results.limits[job.device],
        }
        with working(order) as (worker, said):
            at: dict[str, str] = {}
            started = False
            try:
                end = time.monotonic() + asked.limit + STARTING
                while (event := worker.next(end - time.monotonic())) is not None:
                    if "case" in event:
                        at, started = {"case": event["case"]}, True
                        end = time.monotonic() + asked.limit
                        tell(f"{job.op.name}: {event['case']} {job.dtype} {job.device}")
                    elif "step" in event:
                        at.update(step=event["step"], variant=event["variant"])
                        tell(
                            f"{job.op.name}: {at['case']} {job.dtype} {job.device}: {event['step']} {event['variant']}"
                        )
                    elif "rows" in event or "trouble" in event:
                        rows = event.get("rows") or [_failed(job, at["case"], "eager", **event["trouble"])]
                        results.add(rows, number)
                        left.remove(at["case"])
                        keep()
                if left:
                    raise Gone("it ended early")
                return
            except TimeoutError:
                status, why = "timeout", f"not done after {asked.limit if started else asked.limit + STARTING:g} s"
            except Gone as gone:
                last = said()
                killed = "signal 9" in str(gone)
                status = "out of memory" if killed else "crashed"
                why = f"{gone}" + (f": {last}"[:300] if last and not killed else "")
        name = at.get("case", left[0])
        variant = at.get("variant", "")
        blamed = variant if at.get("step") == "verifying" and variant != "eager" else "eager"
        if at.get("step") in ("timing", "weighing"):
            why += f", while all variants were in {at['step']}"  # in turns: nobody knows whose turn it was
        results.add([_failed(job, name, blamed, status, why)], number)
        if blamed == "eager":  # without its baseline there is nothing to compare the others with
            left.remove(name)
        if not started:  # it fails before it begins, and would again
            for name in left:
                results.add([_failed(job, name, "eager", status, why)], number)
            left = []
        else:
            job.without.setdefault(name, []).append(blamed)
        keep()


def _failed(job: Job, name: str, variant: str, status: str, why: str) -> dict[str, Any]:
    case = next(c for c in cases(job.op, job.device) if c.name == name)
    known = {v.name: v for v in job.op.spec.variants}
    known["eager"] = Variant("eager", "reference", job.op.reference)
    known["compiled"] = Variant("compiled", "compiled", job.op.reference)
    known["opwright"] = Variant("opwright", "operator", job.op)
    return {**blank(job.op, case, known[variant], job.dtype, job.device), "status": status, "why": why}


def host_time(results: Results, run: int) -> None:
    """What a call costs its caller apart from the work. On CUDA it is read beside the device's time; on the CPU it is
    the time of the family's smallest call, where next to nothing is left to compute."""
    mine = [r for r in results.rows if r["run"] == run and r["status"] == "ok"]
    for row in mine:
        for name in ("forward", "forward_backward"):
            if f"{name}_us" not in row or not row["device"].startswith("cpu"):
                continue
            kin = [
                r
                for r in mine
                if all(r[k] == row[k] for k in ("op", "family", "dtype", "device", "variant")) and f"{name}_us" in r
            ]
            smallest = min(kin, key=lambda r: r["size"] or 0)
            if smallest["size"] is not None and smallest is not max(kin, key=lambda r: r["size"] or 0):
                row[f"{name}_host_us"] = smallest[f"{name}_us"]["p50"]
