"""Operators on DTensors, in two processes."""

from __future__ import annotations

from typing import Any

import pytest

from opwright.kit.private import dtensors
from tests.kit.distributed import ranks
from tests.kit.distributed.test_train import expect_the_same


@pytest.fixture(scope="module")
def calls() -> dict[str, Any]:
    return ranks.run("calls.py", 2)


WITHOUT_MOVING = [
    "sigmoid rows",
    "sigmoid columns",
    "sigmoid empty piece",
    "scale whole",
    "axpby",
    "axpby broadcast",
    "cell",
    "lltm",
    "lltm lengths",
    "user rows",
    "user columns",
    "user keyword",
    "user undeclared",
]


@pytest.mark.parametrize("name", WITHOUT_MOVING)
def test_devices_work_on_their_own_pieces(calls: dict[str, Any], name: str) -> None:
    if name == "sigmoid empty piece" and not hasattr(dtensors.parts().expand, "keywords"):
        pytest.skip("this torch gathers a tensor that has fewer rows than there are devices")
    assert calls[name]["forward"] == calls[name]["backward"] == {}
    cut = name != "scale whole"
    assert all(("Shard" in result) == cut for result in calls[name]["results"])


def test_what_must_move_does(calls: dict[str, Any]) -> None:
    assert sum(calls["axpby moved"]["forward"].values()) == 1


@pytest.mark.parametrize("cut", ["batch", "n", "k", "k alone"])
def test_a_layer_takes_the_collectives_of_pytorchs_own(calls: dict[str, Any], cut: str) -> None:
    assert calls[f"ow linear {cut}"] == calls[f"nn linear {cut}"]


def test_a_bias_counts_once(calls: dict[str, Any]) -> None:
    assert calls["ow linear k"]["results"] == ["Partial(sum)"]
    assert calls["ow linear k"]["gradients"][2] == "Replicate()"


@pytest.mark.parametrize("name", ["user rows", "user undeclared"])
def test_the_kernel_runs_on_pieces(calls: dict[str, Any], name: str) -> None:
    assert calls[name]["kernel"]


def test_a_flag_that_needs_the_whole_is_not_served_by_what_another_flag_allowed(calls: dict[str, Any]) -> None:
    assert not calls["user undeclared whole"]["kernel"]
    assert calls["user undeclared whole"]["forward"] != {}


def test_a_model_trains_as_in_one_process(calls: dict[str, Any]) -> None:
    expect_the_same(calls["train"], ["fsdp", "tp"])
    assert "DTensor" in calls["train"]["fsdp"]["parameters"]
