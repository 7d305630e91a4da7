"""A transformer with operators of ours, under four layouts, in four processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.distributed import ranks


def expect_the_same(found: dict[str, Any], layouts: list[str]) -> None:
    """The losses and parameters of one process, within rounding; and a checkpoint that another layout takes."""
    for layout in layouts:
        assert found[layout]["losses"] == pytest.approx(found["alone"]["losses"], rel=2e-6)
        assert found[layout]["apart"] < 5e-6
    assert found["checkpoint"]["expected"] < found["alone"]["losses"][0]  # of the same tokens
    assert found["checkpoint"]["loss"] == pytest.approx(found["checkpoint"]["expected"], rel=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("native", ["1", "0"])
def test_a_transformer_trains_as_in_one_process(native: str) -> None:
    layouts = ["ddp", "fsdp", "tp", "fsdp+tp"]
    expect_the_same(ranks.run("train.py", 4, *layouts, OPWRIGHT_NATIVE=native), layouts)


@pytest.mark.slow
def test_a_checkpoint_of_shards_is_loaded_into_one_model() -> None:
    layouts = ["tp", "fsdp+tp"]
    expect_the_same(ranks.run("train.py", 4, *layouts), layouts)
