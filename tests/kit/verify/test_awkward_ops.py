"""No false alarm: the check finds nothing in operators that are right, however awkward their numbers."""

from __future__ import annotations

import pytest

from tests.awkward_ops import AWKWARD
from tests.kit.verify.apart import apart, check_awkward, check_shipped
from tests.library import OPERATORS

VALUES = ("forward", "special", "gradients")
"""The properties that depend on values, and so on the seed."""
NAMES = [f"{theme}/{name}" for theme, name in AWKWARD]
SHIPPED = [op.name for op in OPERATORS]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_in_an_awkward_operator(name: str) -> None:
    assert apart(check_awkward, *name.split("/"), (), [0]) == [[]]


@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_is_found_in_the_library(name: str) -> None:
    assert apart(check_shipped, name, (), [0]) == [[]]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_in_an_awkward_operator_with_200_seeds(name: str) -> None:
    seeds = list(range(200))
    assert dict(zip(seeds, apart(check_awkward, *name.split("/"), VALUES, seeds), strict=True)) == {
        s: [] for s in seeds
    }


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_is_found_in_the_library_with_200_seeds(name: str) -> None:
    seeds = list(range(200))
    assert dict(zip(seeds, apart(check_shipped, name, VALUES, seeds), strict=True)) == {s: [] for s in seeds}
