"""On a GPU: nothing is written beside the results, nothing beside the arguments is read, all of a result is written.

The guard of a GPU's memory is there from a process's first allocation to its end, so this property has one of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from opwright.kit.check import bounds, guard
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.layouts import MIXED
from opwright.kit.check.property import Property

PROPERTY = Property(turn=210, device="cuda", process="alone")


def skip(subject: Subject) -> str | None:
    if torch.device(subject.device).type != "cuda":
        return "it watches over memory on a GPU"
    if subject.op.random:
        return "it draws random numbers"
    if not subject.has_kernel:
        return "no kernel runs here"
    found = guard.on_cuda()
    return found if isinstance(found, str) else None


def cases(subject: Subject) -> Iterator[Case]:
    rng = subject.rng("bands")
    for s in range(subject.count):
        yield from (Case(s, d) for d in subject.fast_dtypes)
        yield from (Case(s, subject.main, layout) for layout in ("transposed", "sliced", "misaligned"))
        yield from (Case(s, rng.choice(subject.fast_dtypes), MIXED, v) for v in ("zero", "one", "tail", "tail2"))
        yield Case(s, subject.main, variant="tail")
        yield Case(s, subject.main, variant="big")


def check(subject: Subject, case: Case) -> None:
    bounds.check(subject, case, guard.on_cuda())
