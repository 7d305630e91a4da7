"""What compute-sanitizer watches: every rung of an operator, once a case, and nothing judged."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch

from opwright.kit.check.calls import reference_of, results_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.layouts import MIXED
from opwright.kit.dispatch import registry
from opwright.kit.op import Op
from opwright.kit.spec.samples import Sample
from opwright.kit.workers.child import Say


def cases(subject: Subject) -> Iterator[Case]:
    """Few enough for a program that runs a hundred times slower."""
    for s in range(subject.count):
        yield from (Case(s, dtype) for dtype in subject.fast_dtypes)
        yield from (Case(s, subject.main, layout) for layout in ("transposed", "misaligned", MIXED))
        yield from (Case(s, subject.main, variant=variant) for variant in ("tail", "tail2"))
    yield Case(0, subject.main, variant="big")


def answer(request: dict[str, Any], say: Say) -> dict[str, Any]:
    """Run every case; how many calls those were."""
    warnings.simplefilter("ignore")
    count = 0
    for rung in registry.recall(request["home"]).ladder:
        subject = Subject(rung, request["device"], request["seed"])
        if not subject.has_kernel:
            continue
        for case in cases(subject):
            try:
                sample = subject.draw(case)
                taken = rung.choose(rung.signature.bind(sample.args, sample.kwargs))[0]
            except Exception:
                continue  # a case that its author's code does not make
            if taken is None:
                continue
            try:
                results_of(rung, rung, sample)
            except Exception:
                if _takes(rung, sample):
                    raise
                continue
            count += 1
    torch.cuda.synchronize()
    return {"calls": count}


def _takes(rung: Op[..., Any], sample: Sample) -> bool:
    """Whether the reference takes a call."""
    try:
        reference_of(rung)(sample)
    except Exception:
        return False
    return True
