"""Failures that no case of a property tells by itself: nothing to try, a kernel that does not fit, a crash."""

from __future__ import annotations

import os
from typing import Any

from opwright.kit.check.report import Failure, Result
from opwright.kit.op import Op


def nothing_accepted(rung: Op[..., Any], reasons: list[str]) -> Failure:
    """An operator without a sample that its reference takes is proved by nothing."""
    message = f"it has no samples; declare some with @{rung.home.name}.samples"
    if reasons:
        message = f"none of its samples is accepted in any dtype: {reasons[0]}"
    return Failure(
        property="forward",
        op=rung.name,
        dtype="",
        layout="",
        sample="all",
        message=message,
        replay=f"--only forward --case {rung.name}:0.float32.plain --seed 0",
    )


def unfit(rung: Op[..., Any], kernel: str, message: str) -> Result:
    failure = Failure(
        property="kernel",
        op=rung.name,
        dtype="",
        layout="",
        sample=kernel,
        message=message.removeprefix(f"{rung.name}: ") + ("\n" if "\n" in message else ""),
        replay=f"opwright build {named(rung) or rung.home.name}",
    )
    return Result(rung.name, "kernel", cases=1, failures=[failure])


def crash(result: Result, case: dict[str, Any], words: str, message: str, seed: int) -> Failure:
    return Failure(
        property=result.property,
        op=result.op,
        dtype=case["dtype"],
        layout=case["layout"],
        sample=f"{case['sample']}: {words}",
        message=message,
        replay=f"--only {result.property} --case {result.op}:{case['case']} --seed {seed}",
    )


def named(op: Op[..., Any]) -> str | None:
    """An operator as the command line names it; None where it cannot."""
    home = op.home
    if home.__module__.startswith("opwright."):
        return home.name
    if home.__module__ != "__main__" and home.file is not None and os.path.isfile(home.file):
        return os.path.relpath(home.file)
    return None
