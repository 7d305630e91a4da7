"""Operators drawn at random do what their plain functions do, in every way of using them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from tests.calling import WAYS, Case
from tests.random_ops import RandomOp, random_ops
from tests.ways import SLOW

COMPILERS = {"aot_eager", "aot_eager, dynamic", "export", "make_fx"}
QUICK = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


def doors(drawn: RandomOp) -> list[object]:
    return [drawn.transparent, drawn.transparent.overload, drawn.opaque]


@pytest.mark.parametrize("name", [w for w in WAYS if w not in SLOW | COMPILERS])
@QUICK
@given(drawn=random_ops())
def test_drawn_operator_is_its_function(name: str, drawn: RandomOp) -> None:
    case = Case(drawn.sample)
    for door in doors(drawn):
        if door is drawn.transparent.overload and "mode" in drawn.sample.kwargs:
            continue  # torch.ops takes an enum's name
        WAYS[name](case.over(door, exact=True), case.over(drawn.plain), case.tensors)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if "dynamic" in n else []) for n in sorted(COMPILERS)]
)
@settings(QUICK, max_examples=6)
@given(drawn=random_ops())
def test_drawn_operator_compiles_to_its_function(name: str, drawn: RandomOp) -> None:
    case = Case(drawn.sample)
    for door in (drawn.transparent, drawn.opaque):
        WAYS[name](case.over(door, exact=True), case.over(drawn.plain), case.tensors)


@pytest.mark.slow
@settings(QUICK, max_examples=15)
@given(drawn=random_ops())
def test_drawn_operator_compiles_with_inductor(drawn: RandomOp) -> None:
    case = Case(drawn.sample)
    for door in (drawn.transparent, drawn.opaque):
        WAYS["inductor"](case.over(door, exact=True), case.over(drawn.plain), case.tensors)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(QUICK, max_examples=150)
@given(drawn=random_ops())
def test_many_drawn_operators_are_their_functions(drawn: RandomOp) -> None:
    case = Case(drawn.sample)
    for name, way in WAYS.items():
        if name not in SLOW | COMPILERS:
            for door in (drawn.transparent, drawn.opaque):
                torch.manual_seed(0)
                way(case.over(door, exact=True), case.over(drawn.plain), case.tensors)
