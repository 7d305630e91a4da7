"""torch.library.opcheck finds the registration sound: schema, autograd, fake kernel, dynamic shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check.calls import accepted, depends_on_values, first_line, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.spec.values import has_gradient, tensors
from opwright.kit.truth.oracle import Results, copied, rebuilt

PROPERTY = Property(turn=70, once=True)


def cases(subject: Subject) -> Iterator[Case]:
    return subject.few(2 if subject.has_kernel and not subject.op.is_gradient else 1)


def skip(subject: Subject) -> str | None:
    return "it draws random numbers" if subject.op.random else None


def dense(t: Tensor) -> Tensor:
    """A tensor that stands for its shape alone shares one element, which tracers could not write to."""
    return torch.ones_like(t.contiguous()) if 0 in t.stride() and t.numel() > 1 else t.detach()


UTILITIES = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def _asked(results: Results) -> tuple[str, ...]:
    """What opcheck is asked for. Its last test adds up all results in place of the first one's sum, which fails of
    itself where that is an integer and another is none."""
    whole = [not (r.is_floating_point() or r.is_complex()) for r in results if r is not None]
    return UTILITIES[:3] if whole[:1] == [True] and not all(whole) else UTILITIES


def check(subject: Subject, case: Case) -> None:
    op = subject.op
    sample = rebuilt(subject.draw(case), dense)
    results = accepted(lambda: reference_of(op)(copied(sample)))
    values = op.signature.bind(sample.args, sample.kwargs)
    if not op.is_gradient and op.has_rung:
        followed = [p for p in op.signature.parameters if not p.mutated]  # a leaf that is followed may not be written
        for t in (t for p in followed for t in tensors(values[p.name]) if has_gradient(t)):
            t.requires_grad_()
    positional, named = op.signature.encode(values)
    try:
        done: dict[str, Any] = torch.library.opcheck(op.overload, tuple(positional), named, test_utils=_asked(results))
    except Exception as e:
        if depends_on_values(op.reference, sample):
            raise NotApplicable("its shapes depend on values") from None
        reason = next((line for line in str(e).splitlines() if "Error" in line or "expected" in line), first_line(e))
        raise Finding(f"opcheck fails: {reason.strip()[:200]}") from None
    failed = {name: said for name, said in done.items() if said != "SUCCESS"}
    if failed:
        raise Finding(f"opcheck fails: {failed}")
