"""Failures that no case of a property tells by itself: nothing to try, a kernel that does not fit, a crash."""

from __future__ import annotations

import os
from typing import Any

from opwright.kit.check.properties import NAMES
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


OWN = "the check itself failed here, which is a mistake of the tool or of a sample"
"""How a failure begins that no case of the operator explains."""


def own_error(result: Result, error: Exception, op: Op[..., Any], seed: int) -> Result:
    """An error outside of any case, as a failure of the property that it ended."""
    text = str(error) if type(error) is RuntimeError else f"{type(error).__name__}: {error}"
    replay = f"--only {result.property} --case all --seed {seed}" if result.property in NAMES else ""
    failure = Failure(
        property=result.property, op=result.op, dtype="", layout="", sample="none", message=f"{OWN}: {text}",
        replay=replay,
    )  # fmt: skip
    result.failures.append(failure)
    if not replay:
        failure.replay = f"opwright check {named(op) or op.home.name}"
    return result


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
