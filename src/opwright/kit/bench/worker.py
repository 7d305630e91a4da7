"""What the bench's workers do. They may raise, crash, run out of memory or never end: only they come to harm."""

from __future__ import annotations

from typing import Any

import torch

import opwright.kit.bench.limits as limits_of
from opwright.kit.bench.cases import cases
from opwright.kit.bench.measure import measure, trouble, variants
from opwright.kit.dispatch import registry
from opwright.kit.spec.measured import Family
from opwright.kit.workers.child import Say


def answer(job: dict[str, Any], say: Say) -> dict[str, Any]:
    """Do a job."""
    torch.manual_seed(0)
    return {"limits": _limits, "measure": _measure}[job["do"]](job, say)


def _limits(job: dict[str, Any], say: Say) -> dict[str, Any]:
    device = torch.device(job["device"])
    what = job["what"]
    answer: Any = limits_of.measure_copy(device) if what == "copy" else None
    if what != "copy":
        try:
            answer = limits_of.measure_gemm(device, getattr(torch, what))
        except RuntimeError:  # this device does not multiply this dtype
            answer = None
    return {"answer": answer}


def _measure(job: dict[str, Any], say: Say) -> dict[str, Any]:
    op = registry.recall(job["op"])
    for rung in op.ladder:
        for kernel in rung.kernels:
            if kernel.device == torch.device(job["device"]).type:
                kernel.ready(rung)
    limits = limits_of.Limits.read(job["limits"])
    growing: tuple[Family, list[Any]] | None = None
    for case in cases(op, job["device"]):
        if case.name not in job["cases"]:
            continue
        say(case=case.name)
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
                tell=lambda step, way: say(step=step, variant=way),
            )
            say(rows=rows)
        except Exception as e:
            say(trouble=trouble(e))
    return {}
