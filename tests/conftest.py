"""Settings that all tests share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
import torch

# Some virtual machines announce AMX and do not run it, and then PyTorch's own bfloat16 products end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@pytest.fixture(autouse=True)
def _fresh_random_state() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    """Each test compiles for itself: Dynamo's limit of recompilations is no subject of ours."""
    torch._dynamo.reset()


@pytest.fixture(scope="session", autouse=True)
def _fresh_compiled_code() -> Iterator[None]:
    """What Inductor keeps on disk knows an operator by its name alone, and not what its fake kernel says today."""
    kept = tempfile.TemporaryDirectory(prefix="opwright-inductor-", ignore_cleanup_errors=True)
    with kept as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def _results_apart() -> Iterator[None]:
    """What tests check and measure is nobody's result."""
    with tempfile.TemporaryDirectory(prefix="opwright-results-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPWRIGHT_RESULTS_DIR", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def _at_home() -> None:
    """A process looks for the package's own C++ once: before some test points the cache elsewhere."""
    import opwright as ow

    ow.axpby(torch.ones(1), torch.ones(1))
