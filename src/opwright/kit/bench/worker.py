"""The process that measures: it may raise, crash, run out of memory or never end, and only it comes to harm.

It takes one job as a line of JSON on stdin and writes what it does as lines of JSON on stdout.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import IO, Any

import torch

import opwright.kit.bench.limits as limits_of
from opwright.kit.bench.cases import cases
from opwright.kit.bench.measure import measure, trouble, variants
from opwright.kit.dispatch.registry import find
from opwright.kit.load import load
from opwright.kit.spec.measured import Family


def main() -> None:
    """Do the job on stdin."""
    # What operators and compilers print must not get between the lines of JSON.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _be_first_to_die()
    torch.manual_seed(0)
    {"limits": _limits, "measure": _measure}[job["do"]](job, out)


def say(out: IO[str], **event: Any) -> None:
    """Write one event."""
    out.write(json.dumps(event) + "\n")
    out.flush()


def _end_with_parent() -> None:
    sys.stdin.read()  # ends when whoever started us does
    os._exit(1)


def _be_first_to_die() -> None:
    """When memory runs out, the kernel should take this process and not the one that reports it."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        pass


def _limits(job: dict[str, Any], out: IO[str]) -> None:
    device = torch.device(job["device"])
    what = job["what"]
    answer: Any = limits_of.measure_copy(device) if what == "copy" else None
    if what != "copy":
        try:
            answer = limits_of.measure_gemm(device, getattr(torch, what))
        except RuntimeError:  # this device does not multiply this dtype
            answer = None
    say(out, answer=answer)


def _measure(job: dict[str, Any], out: IO[str]) -> None:
    for path in job["paths"]:
        load(path)
    op = find(job["op"])
    if op is None:
        raise LookupError(f"{job['op']} is not defined by {', '.join(job['paths']) or 'the library'}")
    for rung in op.ladder:
        for kernel in rung.kernels:
            if kernel.device == torch.device(job["device"]).type:
                kernel.ready(rung)
    limits = limits_of.Limits.read(job["limits"])
    growing: tuple[Family, list[Any]] | None = None
    for case in cases(op, job["device"]):
        if case.name not in job["cases"]:
            continue
        say(out, case=case.name)
        try:
            if case.size == case.family.at:
                ways = variants(op)
            else:  # one compilation for all sizes, as a program whose sizes vary would have it
                if growing is None or growing[0] != case.family:
                    growing = case.family, variants(op, dynamic=True)
                ways = growing[1]
            rows = measure(
                op,
                case,
                ways=ways,
                dtype=getattr(torch, job["dtype"]),
                device=job["device"],
                seconds=job["seconds"] if case.size == case.family.at else job["seconds"] / 3,
                limits=limits,
                without=job["without"].get(case.name, ()),
                tell=lambda step, way: say(out, step=step, variant=way),
            )
            say(out, rows=rows)
        except Exception as e:
            say(out, trouble=trouble(e))


if __name__ == "__main__":
    main()
