"""What a candidate is tried on: the properties of the check that speak of any function, each with the class that a
verdict has when it does not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from opwright.kit.check import bounds, guard, rising
from opwright.kit.check.calls import accepted, attempt, reference_of
from opwright.kit.check.cases import Case
from opwright.kit.check.judge.likeness import Likeness
from opwright.kit.check.judge.stand import Stand
from opwright.kit.check.judge.task import Task
from opwright.kit.check.judge.verdict import Class
from opwright.kit.check.properties import determinism, forward, gradients, memory, special, state, threads
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.spec.samples import Sample
from opwright.kit.truth.oracle import Oracle, copied, rebuilt

NAMES = ("forward", "special", "gradients", "memory", "determinism", "state", "threads")
CLASSES: dict[str, Class] = {
    "forward": "wrong values",
    "special": "wrong values",
    "gradients": "wrong gradient",
    "memory": "out of bounds",
    "determinism": "nondeterministic",
    "threads": "race",
    "state": "cheats",
}
CASES: dict[str, Callable[[Task], Iterator[Case]]] = {
    "forward": forward.cases,
    "special": special.cases,
    "gradients": gradients.cases,
    "memory": memory.cases,
    "determinism": determinism.cases,
    "threads": threads.cases,
    "state": state.cases,
}  # type: ignore[assignment]
MANY, SECONDS = 1200, 1.0
"""Calls in a row, and how long they may take together."""


def stand_of(task: Task) -> Stand:
    """The process that a task's candidate runs in."""
    found = cast(Likeness, task.op).stand
    assert found is not None
    return found


def cases(task: Task, name: str) -> Iterator[Case]:
    """The cases of a property, without those that change what is to stay."""
    for case in CASES[name](task):
        # Those take an operator, look at this process, or ask for what no function promises.
        if task.wanted(case) and case.extra not in (gradients.SECOND, "shared"):
            yield case


def skip(task: Task, name: str, wanted: bool | None) -> str | None:
    """Why a property is not tried; None where it is."""
    kind = torch.device(task.device).type
    if name == "special" and "values" in task.keep:
        return "values stay as the samples have them"
    if name == "threads" and kind != "cpu":
        return "it watches the CPU"
    if name == "memory" and kind == "cpu":
        return guard.unavailable()
    if name == "gradients":
        return _no_gradient(task, wanted)
    return None


def _no_gradient(task: Task, wanted: bool | None) -> str | None:
    """Gradients are asked for where both functions have them, or where somebody insists."""
    if wanted is False:
        return "nobody asked for gradients"
    if task.op.spec.written:
        return "it writes to its arguments"
    recorded = None
    for case in task.few(task.count):
        try:
            sample = copied(task.draw(case))
            leaves = rebuilt(sample, lambda t: t.requires_grad_() if t.is_floating_point() or t.is_complex() else t)
            with torch.enable_grad():
                if not _records(task.op.calls.direct, leaves):
                    continue
                if wanted:
                    return None
                recorded = _records(task.op, leaves)
        except Exception:
            recorded = recorded or False  # of functions that leave PyTorch, on a tensor that requires a gradient
        if recorded:
            return None
    if recorded is None:
        return "the reference has no gradient"
    return "the candidate has none where the reference has; gradients=True (--gradients) insists on them"


def _records(function: Callable[..., Any], sample: Sample) -> bool:
    return any(r is not None and r.requires_grad for r in function(*sample.args, **sample.kwargs))


def check(task: Task, name: str, case: Case) -> None:
    """Raise Finding, or the stand's Charge, where a property does not hold in a case."""
    if name == "memory":
        bounds.check(task, case, cast(guard.Guard, stand_of(task)))
    elif name == "threads" and case.extra == "callers":
        _callers(task, case)
    elif name == "state" and case.extra == "later":
        _later(task, case)
    elif name == "state" and case.extra == "around":
        _around(task, case)
    elif name == "state" and case.extra == "many":
        _many(task, case)
    else:
        if case.extra == "subnormal":
            _refuse_underflow(task, case)
        properties = {
            "forward": forward, "special": special, "gradients": gradients, "determinism": determinism,
            "threads": threads, "state": state,
        }  # fmt: skip
        properties[name].check(task, case)


def _refuse_underflow(task: Task, case: Case) -> None:
    """A fused function does not show in which of its steps subnormal numbers are lost."""
    sample = task.draw(replace(case, extra=""))
    if not accepted(lambda: Oracle(reference_of(task.op), sample, task.seed)).pointwise:
        raise NotApplicable("whether a sum underflows depends on its steps")


def _refuse_written(task: Task) -> None:
    if task.op.spec.written:
        raise NotApplicable("it writes to its arguments")


def _written(task: Task, *calls: Sample) -> list[Tensor]:
    """The tensors of calls that are written to."""
    return [t for call in calls for t in cast(Likeness, task.op).written(call)]


def _around(task: Task, case: Case) -> None:
    """What every caller shares is left as it was found."""
    sample = task.draw(Case(case.sample, case.dtype))
    accepted(lambda: reference_of(task.op)(copied(sample)))
    for _ in range(2):  # what is made in the first call of all, such as threads, is made
        own = copied(sample)
        found = stand_of(task).changes(own, _written(task, own))
    if found:
        raise Finding(f"a call changes {found[0]}")


def _callers(task: Task, case: Case) -> None:
    """Threads that call it at once, each with values of its own."""
    sample = task.draw(Case(case.sample, case.dtype, case.layout, case.variant))
    calls = [rising.changed(sample, partial(threads.scaled, by=(k + 1) / threads.CALLERS - 0.7)) for k in range(1, 4)]
    truths = [(call, accepted(partial(Oracle, reference_of(task.op), call, task.seed))) for call in (sample, *calls)]
    for call, truth in truths:
        truth.judge(attempt(task.op, copied(call)))
    own = [copied(call) for call, _ in truths]
    given = stand_of(task).together(own, threads.TIMES, _written(task, *own))
    for (_, truth), results in zip(truths, given, strict=True):
        for got in results:
            try:
                truth.judge(got)
            except Finding as f:
                message = f"with several callers at once, {f.message}"
                raise Finding(message, index=f.index, expected=f.expected, got=f.got) from None


def _later(task: Task, case: Case) -> None:
    """A result that somebody still holds is left alone by later calls, and they by what is written to it."""
    _refuse_written(task)
    stand, sample = stand_of(task), task.draw(Case(case.sample, case.dtype))
    accepted(lambda: reference_of(task.op)(copied(sample)))
    first = stand.call(copied(sample), hold=True)
    floats = lambda t: state.other_values(t) if t.is_floating_point() or t.is_complex() else t  # noqa: E731
    changed = rising.changed(copied(sample), floats)
    accepted(lambda: reference_of(task.op)(copied(changed)))
    stand.call(changed)
    # What lies in an argument changes with it, as the reference's result does there.
    own = [i for i, within in enumerate(first.within) if within < 0]
    before, after = first.results, stand.held()
    found = determinism.differs([before[i] for i in own], [after[i] for i in own])
    if found is not None:
        at, a, b = found
        raise Finding("a result is overwritten by a later call", index=at, expected=a, got=b)
    oracle = accepted(lambda: Oracle(reference_of(task.op), sample, task.seed))
    oracle.judge(stand.call(copied(sample), hold=True).results)
    stand.spoil(own, state.SPOILT)
    try:
        oracle.judge(stand.call(copied(sample)).results)
    except Finding as f:
        raise Finding(state.HANDED_OUT, index=f.index, expected=f.expected, got=f.got) from None


def _many(task: Task, case: Case) -> None:
    """The same call, again and again: by its thousandth, whoever counts has done so."""
    sample = task.draw(Case(case.sample, case.dtype))
    oracle = accepted(lambda: Oracle(reference_of(task.op), sample, task.seed))
    seconds = (10 if task.thorough else 1) * SECONDS
    own = copied(sample)
    given = stand_of(task).repeat(own, MANY * (10 if task.thorough else 1), seconds, _written(task, own))
    for k, got in enumerate(given):
        if k and determinism.differs(given[0], got) is None:
            continue
        try:
            oracle.judge(got)
        except Finding as f:
            message = f"in call {k + 1} of many calls, {f.message}"
            raise Finding(message, index=f.index, expected=f.expected, got=f.got) from None
