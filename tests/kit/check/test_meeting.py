"""What the check asks where two things meet: infinities and tolerances, order and other values, one result of two."""

from __future__ import annotations

import hashlib
import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.check import layouts, rising
from opwright.kit.check.cases import Case, Subject
from opwright.kit.spec.samples import Sample
from opwright.kit.truth.oracle import Finding, Oracle
from tests.awkward_ops import operator


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("infinity", [math.inf, -math.inf])
def test_no_number_is_right_where_the_reference_is_infinite(dtype: torch.dtype, infinity: float) -> None:
    oracle = Oracle(lambda sample: [sample.args[0].abs() * infinity], Sample((torch.ones(3, dtype=dtype),), {}))
    oracle.judge([torch.full((3,), infinity, dtype=dtype)])
    for wrong in (0.0, torch.finfo(dtype).max, -infinity, math.nan):
        with pytest.raises(Finding, match="where the reference is"):
            oracle.judge([torch.full((3,), wrong, dtype=dtype)])


def test_where_rounding_decides_between_an_infinity_and_a_number_both_are_right() -> None:
    given = torch.tensor([0.1, 0.1], dtype=torch.float32)
    oracle = Oracle(lambda sample: [1 / (sample.args[0] * 3 - sample.args[0] * 3)], Sample((given,), {}))
    oracle.judge([torch.tensor([math.inf, math.inf])])
    oracle.judge([torch.tensor([1e7, -1e7])])


def test_edges_beside_numbers_stay_in_order_and_lone_numbers_need_not() -> None:
    edges, numbers = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([0.3, -1.2, 0.1, 0.7])
    changed = rising.changed(Sample((numbers, edges), {}), lambda t: -t)
    assert changed.args[1].tolist() == [-2.0, 0.0, 1.0]
    assert changed.args[0].tolist() == (-numbers).tolist()
    assert rising.changed(Sample((edges,), {}), lambda t: -t).args[0].tolist() == [1.0, -0.0, -2.0]


def test_every_change_of_values_leaves_edges_in_order() -> None:
    subject = Subject(operator("ways", "bins"))
    for values in ("clustered", "again:3", "eye@", "by:-2e0", "spread", "integral", "last"):
        edges = subject.draw(Case(0, torch.float32, values=values)).args[1]
        assert edges.tolist() == sorted(edges.tolist()), values


def test_one_of_several_tensors_lies_otherwise_than_the_rest() -> None:
    assert layouts.places(1, random.Random(0)) == []
    assert layouts.places(2, random.Random(0)) == ["only0", "only1"]
    three = torch.ones(3, 2, 3).unbind()
    for layout, turned in (("only1", [1]), ("but1", [0, 2])):
        laid = [layouts.apart(t, layout, k) for k, t in enumerate(three)]
        assert [k for k, t in enumerate(laid) if t.stride() == (1, 2)] == turned


class _OneAlone(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        grad: Tensor = first * x.cos() - (second * x.sin() if bool(first.any()) else 0)
        return grad


def both(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), x.cos()


def both_at_once_alone(x: Tensor) -> Any:
    return _OneAlone.apply(x)  # type: ignore[no-untyped-call]


_kept: dict[Any, Tensor] = {}


def twice(x: Tensor) -> Tensor:
    return x * 2


def twice_by_content(x: Tensor) -> Tensor:
    key = (x.shape, x.dtype, hashlib.sha256(str(x.tolist()).encode()).digest())
    return _kept.setdefault(key, x * 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidate", "like", "cls", "message"),
    [
        (both_at_once_alone, both, "wrong gradient", "of one result alone"),
        (twice_by_content, twice, "cheats", "what a caller writes to a result"),
    ],
    ids=["one result alone", "kept by content"],
)
def test_the_judge_rejects(candidate: Any, like: Any, cls: str, message: str) -> None:
    verdict = ow.check(candidate, like=like, samples=[(torch.linspace(-1, 1, 20).reshape(4, 5),)]).verdict
    assert verdict is not None
    assert verdict.cls == cls
    assert message in verdict.message
