"""A property: what it says of itself, its cases, and what becomes of one."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from opwright.kit.check import properties
from opwright.kit.check.advice import advice
from opwright.kit.check.calls import first_line
from opwright.kit.check.cases import Case, Subject, describe
from opwright.kit.check.report import Failure, Finding, NotApplicable
from opwright.kit.op import Op
from opwright.kit.spec.require import spell


@dataclass(frozen=True)
class Property:
    """What the file of a property says of it."""

    turn: int
    """When it is tried: what is cheap and tells most comes first."""
    device: Literal["cpu", "cuda"] | None = None
    """The kind of device that it says something about; None: every one."""
    process: Literal["shared", "apart", "alone"] = "shared"
    """Whether others are tried in the same process; apart: not before it has its own, alone: never."""
    once: bool = False
    """Whether further seeds tell little more."""
    asked: Literal["", "sanitize", "coverage"] = ""
    """What somebody must ask for, that it is tried; nothing: it always is."""
    adopted: bool = False
    """Whether it is about operators that were adopted, and no others."""

    def serves(self, device: str, asked: Collection[str] = ()) -> bool:
        """Whether it belongs to a check on a kind of device, where something was asked for or not."""
        return self.device in (None, "cuda" if device == "cuda" else "cpu") and (not self.asked or self.asked in asked)


def concerned(rung: Op[..., Any], wanted: list[str]) -> list[str]:
    """Of the properties that somebody wants, those that may say something of an operator; one alone is tried anyway."""
    return [n for n in wanted if len(wanted) == 1 or not facts_of(n).adopted or rung.spec.adopted is not None]


def module_of(name: str) -> ModuleType:
    """The file of a property."""
    return importlib.import_module(f"{properties.__name__}.{name}")


def facts_of(name: str) -> Property:
    """What a property says of itself."""
    facts: Property = module_of(name).PROPERTY
    return facts


def in_turn() -> list[str]:
    """The names of all properties, in the order in which they are tried."""
    return sorted(properties.NAMES, key=lambda name: facts_of(name).turn)


def alone() -> list[str]:
    """The names of the properties whose process can try no other."""
    return [name for name in properties.NAMES if facts_of(name).process == "alone"]


def environment_of(name: str) -> dict[str, str]:
    """What the process of a lone property has more in its environment."""
    make = getattr(module_of(name), "environment", None) if name else None
    more: dict[str, str] = {} if make is None else make()
    return more


def cases_of(subject: Subject, name: str) -> tuple[str | None, Iterable[Case]]:
    """Why a property does not apply, or its cases."""
    module = module_of(name)
    skipped: str | None = module.skip(subject) if hasattr(module, "skip") else None
    return (skipped, ()) if skipped is not None else (None, module.cases(subject))


def notes_of(subject: Subject, name: str) -> list[str]:
    """What a property that holds has to say beside that."""
    say = getattr(module_of(name), "notes", None)
    notes: list[str] = [] if say is None else say(subject)
    return notes


def found_by(subject: Subject, name: str) -> dict[str, Any] | None:
    """What a property that searches came to: cases that lead somewhere, lines that ran; None of others."""
    tell = getattr(module_of(name), "found", None)
    found: dict[str, Any] | None = None if tell is None else tell(subject)
    return found


def chosen(subject: Subject, case: Case, only: str | None) -> bool:
    """Whether a case is the one that was asked for, if one was."""
    return only is None or only in (case.id, f"{subject.name}:{case.id}")


def attempt(subject: Subject, name: str, case: Case) -> Failure | NotApplicable | None:
    """A failure, or why the case does not apply; None when the property holds."""
    try:
        with _convolutions_settled(subject):
            module_of(name).check(subject, case)
    except NotApplicable as e:
        return NotApplicable(*e.args)  # without the frames of its traceback, and what they hold
    except Finding as f:
        return failure(subject, name, case, f)
    except Exception as e:
        return failure(subject, name, case, Finding(f"it raised {type(e).__name__}: {first_line(e)}{_where(e)}"))
    return None


def _convolutions_settled(subject: Subject) -> AbstractContextManager[None]:
    """PyTorch's convolutions on a GPU round as their dtype does and give the same each time. By default they do
    neither, and an operator that calls them would be found wrong for that, or its reference."""
    if torch.device(subject.device).type != "cuda":
        return nullcontext()
    settled: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
    return settled


def _where(e: BaseException) -> str:
    last = traceback.extract_tb(e.__traceback__)[-1]
    return f" ({Path(last.filename).name}:{last.lineno})"


def failure(subject: Subject, name: str, case: Case, finding: Finding) -> Failure:
    """A finding with the case that it was made in."""
    try:
        call = finding.call or subject.draw(replace(case, extra=""))
        words = describe(subject.op, call)
    except Exception:
        words = "its arguments cannot be drawn"
    return Failure(
        property=name,
        op=subject.name,
        dtype=spell(case.dtype),
        layout=case.layout,
        sample=f"{case.drawn}: {words}",
        message=finding.message + advice(subject, name, case, finding),
        index=finding.index,
        expected=finding.expected,
        got=finding.got,
        replay=f"--only {name} --case {subject.name}:{case.id} --seed {subject.seed}",
    )


def call_of(subject: Subject, name: str, case_id: str) -> str:
    """The call of a case that ended its process, in words."""
    made = getattr(module_of(name), "call", None)
    try:
        case = next(c for c in cases_of(subject, name)[1] if c.id == case_id)
        if made is not None:
            what, sample = made(subject, case)
            return f"{what}: {describe(subject.op, sample)}"
        return describe(subject.op, subject.draw(replace(case, extra="")))
    except Exception:
        return f"case {case_id}"
