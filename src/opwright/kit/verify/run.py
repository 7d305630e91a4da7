"""Running the check: which properties of which rungs, and what becomes of their cases."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from opwright.kit.op import Op
from opwright.kit.require import spell
from opwright.kit.verify import PROPERTIES
from opwright.kit.verify.calls import first_line
from opwright.kit.verify.cases import Case, Subject, describe
from opwright.kit.verify.report import Failure, Finding, NotApplicable, Report, Result

MOST_FAILURES = 3
"""After so many failures of a property its further cases tell nothing new."""


def rungs(op: Op[..., Any]) -> list[Op[..., Any]]:
    """The operator, its gradient, and what lies above that if it has a kernel."""
    if op.has_rung:
        _ = op.backward
    ladder = op.ladder
    return [rung for i, rung in enumerate(ladder) if i < 2 or rung.kernels]


def run(
    operators: Sequence[Op[..., Any]],
    *,
    device: str = "cpu",
    seed: int = 0,
    thorough: float | None = None,
    only: Sequence[str] = (),
    case: str | None = None,
    sanitize: bool = False,
    progress: Callable[[str, str, int], None] | None = None,
) -> Report:
    """Check operators, one property after the other."""
    for name in only:
        if name not in PROPERTIES:
            raise ValueError(f"there is no property {name!r}; the properties are {', '.join(PROPERTIES)}")
    wanted = [p for p in PROPERTIES if not only or p in only]
    results = []
    for op in operators:
        if not isinstance(op, Op):
            raise TypeError(f"check: its argument must be an operator, got {type(op).__name__}")
        for rung in rungs(op):
            subject = Subject(rung, device, seed, thorough is not None)
            for name in wanted:
                results.append(one(subject, name, case, progress))
    return Report(results, seed, device)


def one(
    subject: Subject, name: str, only_case: str | None = None, progress: Callable[[str, str, int], None] | None = None
) -> Result:
    """One property of one rung."""
    result = Result(subject.name, name)
    start = time.perf_counter()
    module = importlib.import_module(f"opwright.kit.verify.{name}")
    result.skipped = module.skip(subject) if hasattr(module, "skip") else None
    if result.skipped is None:
        for case in module.cases(subject):
            full = f"{subject.name}:{case.id}"
            if only_case is not None and only_case not in (case.id, full):
                continue
            failure = attempt_case(subject, module.check, name, case)
            if failure is not None:
                result.cases += 1
                if isinstance(failure, Failure):
                    result.failures.append(failure)
            if progress is not None:
                progress(subject.name, name, result.cases)
            if len(result.failures) >= MOST_FAILURES:
                break
        if result.cases == 0:
            result.skipped = "no case applies"
    result.seconds = round(time.perf_counter() - start, 3)
    return result


def attempt_case(
    subject: Subject, check: Callable[[Subject, Case], None], name: str, case: Case
) -> Failure | bool | None:
    """A failure, True when the property holds, None when the case does not apply."""
    try:
        check(subject, case)
    except NotApplicable:
        return None
    except Finding as f:
        return failure_of(subject, name, case, f)
    except Exception as e:
        return failure_of(subject, name, case, Finding(f"{type(e).__name__}: {first_line(e)}"))
    return True


def failure_of(subject: Subject, name: str, case: Case, finding: Finding) -> Failure:
    """A finding with the case that it was made in."""
    try:
        words = describe(subject.op, subject.draw(case))
    except Exception:
        words = "?"
    return Failure(
        property=name,
        op=subject.name,
        dtype=spell(case.dtype),
        layout=case.layout,
        sample=f"{case.sample}{'-' + case.variant if case.variant else ''}: {words}",
        message=finding.message,
        index=finding.index,
        expected=finding.expected,
        got=finding.got,
        replay=f"opwright check {subject.op.home.name} --only {name} --case {subject.name}:{case.id} --seed {subject.seed}",
    )
