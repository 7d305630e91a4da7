"""Sizes that torch.compile leaves open: what is decided holds for all of them, so that no rank decides otherwise."""

from __future__ import annotations

import pytest

from tests.kit.distributed.ranks import run


@pytest.mark.slow
def test_ranks_agree_whatever_the_sizes_of_compiled_calls() -> None:
    found = run("open_sizes.py", 2)
    assert set(found["undeclared"]) == {"Replicate()"}  # what PyTorch would do was not rehearsed
    assert set(found["refuses"]) == {"Replicate()"}  # a piece of one row or none would be refused by one rank alone
    assert set(found["declared"]) == {"Shard(dim=0)"}
    assert set(found["linear"]) == {"Shard(dim=1)"}
    assert set(found["fits"]) == {"Partial(sum)"}
    assert set(found["misfit"]) == {"Partial(sum)"}  # decided by its reference, which Dynamo leaves alone
