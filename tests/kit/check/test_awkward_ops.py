"""No false alarm: the check finds nothing in operators that are right, however awkward their numbers."""

from __future__ import annotations

from typing import Any

import pytest

import opwright as ow
from tests.awkward_ops import AWKWARD, operator
from tests.library import OPERATORS

VALUES = ("forward", "special", "gradients")
"""The properties that depend on values, and so on the seed."""
NAMES = [f"{theme}/{name}" for theme, name in AWKWARD]
FEW = {
    "rows/layer", "rows/top", "lookups/segments", "grids/int8_codes", "sums/variance", "sums/difference",
    "limits/softmax", "limits/gelu", "ties/largest", "integers/floor_divide", "steps/round_even", "models/running",
    "kinds/complex_product",
}  # fmt: skip
"""Of each theme one or two are tried in every run."""
assert {*NAMES} > FEW


def marked(names: list[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in FEW else [pytest.mark.slow]) for name in names]


def passes(op: ow.Op[..., Any], only: tuple[str, ...] = (), seed: int = 0) -> None:
    report = ow.check(op, only=only, seed=seed)
    assert report.cases > 0
    assert report.passed, report


@pytest.mark.parametrize("name", marked(NAMES))
def test_nothing_is_found_in_the_values_of_an_awkward_operator(name: str) -> None:
    passes(operator(*name.split("/")), VALUES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_in_an_awkward_operator(name: str) -> None:
    passes(operator(*name.split("/")))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_by_a_search_in_an_awkward_operator(name: str) -> None:
    report = ow.check(operator(*name.split("/")), only=["coverage"])
    assert report.passed, report


LONG = {"sigmoid", "lltm", "lltm_cell", "linear", "axpby", "spmm", "sddmm", "spmm_max", "conv_bn", "track_statistics"}
"""The operators whose whole check takes long."""


@pytest.mark.parametrize(
    "op",
    [pytest.param(op, id=op.name, marks=[pytest.mark.slow] if op.name in LONG else []) for op in OPERATORS],
)
def test_nothing_is_found_in_the_library(op: ow.Op[..., Any]) -> None:
    passes(op)


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(op, marks=[pytest.mark.slow] if op.name == "lltm" else [], id=op.name)
        for op in OPERATORS
        if op.name in LONG - {"sigmoid", "sddmm", "spmm_max", "conv_bn", "track_statistics"}
    ],
)
def test_nothing_is_found_in_the_results_of_the_recurrent(op: ow.Op[..., Any]) -> None:
    passes(op, ("forward",))
