"""With several GPUs: a call runs on the device of its tensors, whichever is current, and leaves that as it was."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from opwright.kit.check.calls import accepted, attempt, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding
from opwright.kit.truth.oracle import Oracle, rebuilt

PROPERTY = Property(turn=220, device="cuda")


def skip(subject: Subject) -> str | None:
    if torch.device(subject.device).type != "cuda":
        return "it is about several GPUs"
    if torch.cuda.device_count() < 2:
        return "there is one GPU here"
    if subject.op.random:
        return "it draws random numbers"
    return None if subject.has_kernel else "no kernel runs here"


def cases(subject: Subject) -> Iterator[Case]:
    return subject.few(3)


def check(subject: Subject, case: Case) -> None:
    sample = rebuilt(subject.draw(case), lambda t: t.to("cuda:1"))
    oracle = accepted(lambda: Oracle(reference_of(subject.op), sample, subject.seed))
    with torch.cuda.device(0):
        results = attempt(subject.op, sample)
        if torch.cuda.current_device() != 0:
            raise Finding(f"it leaves device {torch.cuda.current_device()} current, which was 0")
    for t in results:
        if t is not None and t.device != torch.device("cuda:1"):
            raise Finding(f"its arguments are on cuda:1, its result on {t.device}")
    oracle.judge(results)
