"""What the check's workers do: the cases of a property. A crash there is a finding, and not the end."""

from __future__ import annotations

from typing import Any

import torch

from opwright.kit.check.calls import first_line
from opwright.kit.check.cases import Subject
from opwright.kit.check.property import attempt, cases_of, chosen, failure, found_by, notes_of
from opwright.kit.check.report import Failure, Finding, NotApplicable
from opwright.kit.dispatch import registry
from opwright.kit.workers.child import Say
from opwright.kit.workers.travel import form


def answer(request: dict[str, Any], say: Say) -> dict[str, Any]:
    """Try the cases that a request asks for: each is named before, and what became of it told after."""
    home = registry.recall(request["home"])
    subject = Subject(
        form(home, request["rung"]), request["device"], request["seed"], request["thorough"],
        seconds=request["seconds"], case=request["case"], found=request["found"],
    )  # fmt: skip
    done = set(request["done"])
    skipped, cases = cases_of(subject, request["property"])
    failures = 0
    for case in cases:
        if case.id in done or not chosen(subject, case, request["case"]):
            continue
        say(case=case.id, dtype=str(case.dtype).removeprefix("torch."), layout=case.layout, sample=case.sample)
        outcome = attempt(subject, request["property"], case)
        trouble = _gpu_trouble(subject)
        if trouble is not None and not isinstance(outcome, Failure):
            outcome = failure(subject, request["property"], case, Finding(trouble))
        leaves = trouble is not None or (isinstance(outcome, Failure) and request["property"] == "capture")
        say(
            failure=vars(outcome) if isinstance(outcome, Failure) else None,
            not_applicable=str(outcome) if isinstance(outcome, NotApplicable) else None,
            leaves=leaves,
        )
        if leaves:
            break
        failures += isinstance(outcome, Failure)
        if failures >= request["most"]:
            break
    whole = skipped is None and request["case"] is None and not failures
    found = found_by(subject, request["property"]) if whole else None
    return {"skipped": skipped, "notes": notes_of(subject, request["property"]) if whole else [], "found": found}


def _gpu_trouble(subject: Subject) -> str | None:
    """What went wrong on the GPU behind Python's back. After such an error CUDA answers nothing more."""
    if torch.device(subject.device).type != "cuda":
        return None
    try:
        torch.cuda.synchronize()
    except Exception as e:
        return f"the GPU stopped: {first_line(e)}"
    return None
