"""On a GPU: a call can be captured in a CUDA graph, and the graph replayed with other values gives their results."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from opwright.kit.check.calls import accepted, attempt, first_line, reference_of
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.property import Property
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.truth.oracle import Oracle, copied, rebuilt

PROPERTY = Property(turn=200, device="cuda")


def skip(subject: Subject) -> str | None:
    if torch.device(subject.device).type != "cuda":
        return "there are graphs on a GPU alone"
    if subject.op.random:
        return "it draws random numbers"
    return None if subject.has_kernel else "no kernel runs here"


def cases(subject: Subject) -> Iterator[Case]:
    yield from subject.few(3)
    yield Case(0, subject.main, variant="big")


def check(subject: Subject, case: Case) -> None:
    op, sample = subject.op, subject.draw(case)
    if op.choose(op.signature.bind(sample.args, sample.kwargs))[0] is None:
        raise NotApplicable("the reference runs")
    accepted(lambda: reference_of(op)(copied(sample)))
    other = rebuilt(copied(sample), _changed)
    oracle = accepted(lambda: Oracle(reference_of(op), other, subject.seed))
    given = copied(sample)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            attempt(op, copied(sample))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            results = attempt(op, given)
    except Exception as e:
        raise Finding(f"it cannot be captured in a CUDA graph: {first_line(e)}") from None
    values = iter([*_tensors(other)])
    for t in _tensors(given):
        value = next(values)
        if _own(t):
            t.copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    try:
        oracle.judge(results)
    except Finding as f:
        f.message = f"a graph replayed with other values is wrong: {f.message}"
        raise


def _changed(t: Tensor) -> Tensor:
    return t.mul_(-0.5).add_(0.25) if _own(t) else t


def _own(t: Tensor) -> bool:
    """Whether it can be written to element by element."""
    shared = 0 in t.stride() and t.numel() > 1
    return not shared and (t.is_floating_point() or t.is_complex())


def _tensors(sample: object) -> list[Tensor]:
    from opwright.kit.spec.samples import Sample
    from opwright.kit.spec.values import tensors

    assert isinstance(sample, Sample)
    return [t for value in (*sample.args, *sample.kwargs.values()) for t in tensors(value)]
