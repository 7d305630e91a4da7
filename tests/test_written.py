"""What operators that return nothing write is what their references write, through every door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import copied
from tests.library import OPERATORS

SILENT = [op for op in OPERATORS if not op.signature.outputs and op.functional is None]
"""Beside in-place forms, which have no samples of their own: tests/kit/test_in_place.py has those."""
DTYPES = (torch.float64, torch.float32)


def compiled(op: ow.Op[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    found: Callable[..., Any] = torch.compile(lambda *a, **k: op(*a, **k), backend="aot_eager", fullgraph=True)
    return found


def in_inference_mode(op: ow.Op[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> None:
        with torch.inference_mode():
            op(*args, **kwargs)

    return call


DOORS: dict[str, Callable[[ow.Op[..., Any]], Callable[..., Any]]] = {
    "python": lambda op: op,
    "torch.ops": lambda op: getattr(getattr(torch.ops, op.namespace), op.name),
    "inference mode": in_inference_mode,
    "compiled": compiled,
}


def written(op: ow.Op[..., Any], function: Callable[..., Any], sample: ow.Sample) -> list[Tensor]:
    """What the tensors of a call hold after it: those that are written to, and the others, which must be as before."""
    own = copied(sample)
    function(*own.args, **own.kwargs)
    return [t for value in op.signature.bind(own.args, own.kwargs).values() for t in tensors(value)]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("op", SILENT, ids=lambda op: op.name)
def test_what_is_written_is_what_the_reference_writes(op: ow.Op[..., Any], door: str) -> None:
    changed = False
    for dtype in DTYPES:
        for sample in op.draw_samples(ow.Maker(dtype, "cpu")):
            found, expected = written(op, DOORS[door](op), sample), written(op, op.reference, sample)
            before = written(op, lambda *a, **k: None, sample)
            for a, b, c in zip(found, expected, before, strict=True):
                torch.testing.assert_close(a, b)
                changed = changed or not torch.equal(b, c)
    assert changed


def test_there_are_operators_that_return_nothing() -> None:
    assert "track_statistics" in {op.name for op in SILENT}
