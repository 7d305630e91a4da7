"""The library's kernels for CUDA on the CPU, built when first needed."""

from __future__ import annotations

from typing import Any

import pytest

from tests import emulated

NAMES = ("axpby", "cube", "scale", "sigmoid", "spmm", "spmm_max", "track_statistics", "conv_bn", "lltm_cell")


@pytest.fixture(scope="session")
def ops(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The operators, by name."""
    return emulated.operators(tmp_path_factory.mktemp("emulated"), *NAMES)


@pytest.fixture(params=[0, 7], ids=["in order", "shuffled"])
def seed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The seed of the order of blocks and threads."""
    monkeypatch.setenv("EMULATED_SEED", str(request.param))
    return int(request.param)
