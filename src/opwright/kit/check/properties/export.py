"""torch.export holds the operator, and the exported program gives the reference's values."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check.calls import accepted, collect, first_line, flat, reference_of, why_uncompilable
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.properties.opcheck import dense
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.spec.samples import Sample
from opwright.kit.truth.oracle import Oracle, copied, rebuilt

PROPERTY = Property(turn=90, once=True)


def skip(subject: Subject) -> str | None:
    if subject.op.random:
        return "it draws random numbers"
    return "a gradient is exported with its operator" if subject.op.is_gradient else None


def cases(subject: Subject) -> Iterator[Case]:
    return subject.few(1)


def check(subject: Subject, case: Case) -> None:
    op = subject.op
    sample = rebuilt(subject.draw(case), dense)
    oracle = accepted(lambda: Oracle(reference_of(op), sample, subject.seed))
    feed: list[Tensor] = []
    rebuilt(sample, lambda t: feed.append(t) or t)  # type: ignore[func-returns-value]
    if not feed:
        raise NotApplicable("it takes no tensor")

    class Module(torch.nn.Module):
        def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
            rest = iter(given)
            filled = rebuilt(sample, lambda t: next(rest))
            return tuple(t for t in collect(op, op(*filled.args, **filled.kwargs), filled) if t is not None)

    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            own = [t.clone() for t in feed]
            program = torch.export.export(Module(), tuple(own))
            got: Any = program.module()(*(t.clone() for t in feed))
    except Exception as e:
        raise Finding(
            f"torch.export raised {type(e).__name__}: {first_line(e)}{why_uncompilable(op, sample)}"
        ) from None
    whole = iter(flat(list(got)))
    oracle.judge([None if s is None else next(whole) for s in oracle.same], "exported result")
    del program
    _ = Sample, copied
