"""Settings that all tests share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_random_state() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    """Each test compiles for itself: Dynamo's limit of recompilations is no subject of ours."""
    torch._dynamo.reset()
