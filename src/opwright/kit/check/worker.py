"""The process that a check runs in: a crash there is a finding, and not the end.

It takes requests and gives answers as lines of JSON, over two pipes of its own: what kernels print goes elsewhere.
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch

from opwright.kit.check.calls import first_line
from opwright.kit.check.cases import Subject
from opwright.kit.check.property import attempt, cases_of, chosen, failure
from opwright.kit.check.report import Failure, Finding, NotApplicable
from opwright.kit.check.travel import arrive
from opwright.kit.op import Op


def serve(requests: int, answers: int) -> None:
    """Answer requests until there are no more."""
    homes: dict[str, Op[..., Any]] = {}
    with open(requests, encoding="utf-8") as incoming, open(answers, "w", encoding="utf-8") as outgoing:

        def say(**answer: Any) -> None:
            outgoing.write(json.dumps(answer) + "\n")
            outgoing.flush()

        for line in incoming:
            request = json.loads(line)
            try:
                if "define" in request:
                    op = arrive(request["define"])
                    homes[op.qualname] = op
                    if op.has_rung:
                        _ = op.backward
                    say(defined=[rung.name for rung in op.ladder])
                else:
                    _run(homes[request["home"]], request, say)
            except Exception as e:
                say(error=type(e).__name__, message=str(e))


def _run(home: Op[..., Any], request: dict[str, Any], say: Any) -> None:
    subject = Subject(_rung(home, request["rung"]), request["device"], request["seed"], request["thorough"])
    done = set(request["done"])
    start = time.perf_counter()
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
            return
        failures += isinstance(outcome, Failure)
        if failures >= request["most"]:
            break
    say(end=True, skipped=skipped, seconds=time.perf_counter() - start)


def _rung(home: Op[..., Any], name: str) -> Op[..., Any]:
    """The operator of this name on a ladder."""
    op = home
    while True:
        for found in (op, op.saving_form):
            if found is not None and found.name == name:
                return found
        op = op.backward


def _gpu_trouble(subject: Subject) -> str | None:
    """What went wrong on the GPU behind Python's back. After such an error CUDA answers nothing more."""
    if torch.device(subject.device).type != "cuda":
        return None
    try:
        torch.cuda.synchronize()
    except Exception as e:
        return f"the GPU stopped: {first_line(e)}"
    return None
