"""torch.func.vmap gives, row by row, what the reference gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check.calls import accepted, collect, first_line, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.properties.opcheck import dense
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.spec.samples import Sample
from opwright.kit.truth.oracle import Oracle, Results, rebuilt

PROPERTY = Property(turn=100)

ROWS = 3
_WAYS = ("all", "first", "last-dim", "rest")
"""Which tensors are batched, and where: the last only of operators that declare how they are."""


def skip(subject: Subject) -> str | None:
    return "it draws random numbers" if subject.op.random else None


def cases(subject: Subject) -> Iterator[Case]:
    for case in subject.few(4):
        yield from (Case(case.sample, case.dtype, extra=which) for which in _WAYS[: 4 if subject.op.spec.vmap else 3])


def check(subject: Subject, case: Case) -> None:
    op = subject.op
    plain = rebuilt(subject.draw(Case(case.sample, case.dtype)), dense)
    feed: list[Tensor] = []
    rebuilt(plain, lambda t: feed.append(t) or t)  # type: ignore[func-returns-value]
    if not feed or (case.extra in ("first", "rest") and len(feed) == 1):
        raise NotApplicable("the same as with all")
    left_out = {"first": range(1, len(feed)), "rest": range(1)}.get(str(case.extra), range(0))
    batched = [i not in left_out for i in range(len(feed))]
    rows = [_row(t, b) for t, b in zip(feed, batched, strict=True)]
    stacked = [
        torch.stack(r, -1 if case.extra == "last-dim" else 0) if b else r[0] for r, b in zip(rows, batched, strict=True)
    ]
    dims = tuple((-1 if case.extra == "last-dim" else 0) if b else None for b in batched)
    written = [p for p in op.signature.parameters if p.mutated]
    if written and not all(batched):
        raise NotApplicable("what is written to must be batched")
    each = [_filled(plain, [r[k] if b else r[0] for r, b in zip(rows, batched, strict=True)]) for k in range(ROWS)]
    oracles = [accepted(lambda s=s: Oracle(reference_of(op), s, subject.seed)) for s in each]  # type: ignore[misc]

    def over(function: Callable[..., Any]) -> Any:
        def call(*given: Tensor) -> tuple[Tensor, ...]:
            filled = _filled(plain, list(given))
            return tuple(t for t in collect(op, function(*filled.args, **filled.kwargs), filled) if t is not None)

        with torch.no_grad():
            return torch.func.vmap(call, dims)(*(t.clone() for t in stacked))

    try:
        out = over(op)
    except Exception as e:
        accepted(lambda: over(op.calls.direct))
        raise Finding(f"vmap raised {type(e).__name__}: {first_line(e)}") from None

    def row(whole: Any, k: int) -> Results:
        rest = iter(whole)
        return [None if s is None else next(rest)[k] for s in oracles[k].same]

    for k, oracle in enumerate(oracles):
        oracle.judge(row(out, k), f"result of row {k}", lambda k=k: row(over(op.calls.direct), k))  # type: ignore[misc]


def _row(t: Tensor, batched: bool) -> list[Tensor]:
    if not batched:
        return [t]
    other = t.flip(0) if t.dim() else t
    return [t, other, t if t.dtype == torch.bool else (t * 0.5).to(t.dtype)]


def _filled(sample: Sample, given: list[Tensor]) -> Sample:
    rest = iter(given)
    return rebuilt(sample, lambda t: next(rest))
