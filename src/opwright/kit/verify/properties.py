"""Properties by name: their cases, and what becomes of one."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from opwright.kit.require import spell
from opwright.kit.verify.calls import first_line
from opwright.kit.verify.cases import Case, Subject, describe
from opwright.kit.verify.report import Failure, Finding, NotApplicable


def module_of(name: str) -> ModuleType:
    """The file of a property."""
    return importlib.import_module(f"opwright.kit.verify.{name}")


def cases_of(subject: Subject, name: str) -> tuple[str | None, Iterable[Case]]:
    """Why a property does not apply, or its cases."""
    module = module_of(name)
    skipped: str | None = module.skip(subject) if hasattr(module, "skip") else None
    return (skipped, ()) if skipped is not None else (None, module.cases(subject))


def chosen(subject: Subject, case: Case, only: str | None) -> bool:
    """Whether a case is the one that was asked for, if one was."""
    return only is None or only in (case.id, f"{subject.name}:{case.id}")


def attempt(subject: Subject, name: str, case: Case) -> Failure | NotApplicable | None:
    """A failure, or why the case does not apply; None when the property holds."""
    try:
        module_of(name).check(subject, case)
    except NotApplicable as e:
        return NotApplicable(*e.args)  # without the frames of its traceback, and what they hold
    except Finding as f:
        return failure(subject, name, case, f)
    except Exception as e:
        return failure(subject, name, case, Finding(f"it raised {type(e).__name__}: {first_line(e)}{_where(e)}"))
    return None


def _where(e: BaseException) -> str:
    last = traceback.extract_tb(e.__traceback__)[-1]
    return f" ({Path(last.filename).name}:{last.lineno})"


def failure(subject: Subject, name: str, case: Case, finding: Finding) -> Failure:
    """A finding with the case that it was made in."""
    try:
        call = finding.call or subject.draw(Case(case.sample, case.dtype, case.layout, case.variant))
        words = describe(subject.op, call)
    except Exception:
        words = "its arguments cannot be drawn"
    sizes = f"-{case.variant}" if case.variant else ""
    return Failure(
        property=name,
        op=subject.name,
        dtype=spell(case.dtype),
        layout=case.layout,
        sample=f"{case.sample}{sizes}: {words}",
        message=finding.message,
        index=finding.index,
        expected=finding.expected,
        got=finding.got,
        replay=f"--only {name} --case {subject.name}:{case.id} --seed {subject.seed}",
    )
