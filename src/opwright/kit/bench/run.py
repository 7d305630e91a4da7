"""Measuring many cases, each in a process that may fail without the rest."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from opwright.kit.bench import limits as limits_of
from opwright.kit.bench.cases import cases, families
from opwright.kit.bench.measure import blank
from opwright.kit.bench.results import Results
from opwright.kit.build.trouble import BuildError
from opwright.kit.op import Op
from opwright.kit.spec.measured import Variant
from opwright.kit.workers.travel import Stranded, ticket
from opwright.kit.workers.worker import Died, Worker, spawning

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


def worker() -> Worker:
    """A process of its own for one job."""
    # Inductor's own pool of processes takes longer to start than these kernels to compile.
    threads = os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", "1")
    return Worker(spawning("opwright.kit.bench.worker", {"TORCHINDUCTOR_COMPILE_THREADS": threads}))


def run(asked: Asked, results: Results, *, tell: Tell = lambda text: None, keep: Keep = lambda: None) -> int:
    """Measure what is asked into `results`; `keep` is called after each case. Returns the number of the run."""
    number = results.begin()
    jobs = asked.jobs()
    for job in jobs:
        ticket(job.op, asked.paths)  # raises where it cannot be had, before anything is measured
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


def build_errors(op: Op[..., Any], devices: Sequence[str]) -> list[str]:
    """What the compiler says of an operator's kernels for some devices that cannot be built, or do not fit it."""
    found: dict[str, None] = {}
    kinds = {torch.device(device).type for device in devices}
    for rung in op.ladder:
        for kernel in rung.kernels:
            if kernel.device in kinds:
                try:
                    kernel.ready(rung)
                except BuildError as e:
                    found[str(e)] = None
    return list(found)


def about(op: Op[..., Any]) -> dict[str, Any]:
    """What a report says of an operator that it cannot load."""
    names = [family.name for family in families(op)]
    return {"qualname": op.qualname, "schema": op.schema, "families": names, "doc": inspect.cleandoc(op.__doc__ or "")}


def _limits(device: str, asked: Asked, about: dict[str, Any]) -> limits_of.Limits:
    who = about["gpu"] if device.startswith("cuda") else f"{about['cpu']}, {about['threads']} threads"
    key = f"{who}, torch {torch.__version__}"

    def ask(what: str) -> Any:
        with worker() as working, contextlib.suppress(Died):
            working.ask(do="limits", device=device, what=what)
            return working.listen(60).get("answer")
        return None

    return limits_of.limits(key, tuple(asked.dtypes), ask, again=asked.renew_limits)


def _run(job: Job, asked: Asked, results: Results, number: int, tell: Tell, keep: Keep) -> None:
    """Run a job to its end, with a new worker after each that fails."""
    left = list(job.cases)
    while left:
        order = {
            "do": "measure",
            "op": job.op.qualname,
            "dtype": job.dtype,
            "device": job.device,
            "cases": left,
            "without": job.without,
            "seconds": asked.seconds,
            "limits": results.limits[job.device],
        }
        with worker() as working:
            at: dict[str, str] = {}
            started = False
            try:
                end = time.monotonic() + asked.limit + STARTING
                working.define(job.op, end - time.monotonic(), asked.paths)
                working.ask(**order)
                while "end" not in (event := working.listen(end - time.monotonic())):
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
                if not left:
                    return
                said = f"{event['error']}: {event['message']}" if "error" in event else EARLY
                status, why = "crashed", said.strip().splitlines()[-1][:300]
            except Stranded as e:
                status, why = "crashed", str(e)
            except Died as e:
                status, why = _death(e, asked.limit if started else asked.limit + STARTING)
        name = at.get("case", left[0])
        variant = at.get("variant", "")
        alone = at.get("step") in ("verifying", "verifying again")  # else all take turns
        blamed = variant if alone else "eager"
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


EARLY = "it ended early"


def _death(e: Died, limit: float) -> tuple[str, str]:
    """The status of a case that a worker did not survive, and why."""
    if e.code is None:
        return "timeout", f"not done after {limit:g} s"
    if not e.code:
        return "crashed", EARLY
    ended = f"signal {-e.code} ({signal.strsignal(-e.code)})" if e.code < 0 else f"exit status {e.code}"
    if e.code == -signal.SIGKILL:
        return "out of memory", ended
    return "crashed", ended + (f": {e.last}"[:300] if e.last else "")


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
