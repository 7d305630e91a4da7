"""lltm_cell as a GPU computes it: its own kernels, and the sums over rows that lltm has too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import opwright as ow
from tests.cuda import FLOATS
from tests.cuda.test_lltm import TOLERANCE, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_step_is_right_for_few_rows_and_many(ops: Any, dtype: torch.dtype, seed: int) -> None:
    for batch, inputs, hidden in ((1, 3, 1), (5, 4, 7), (40, 16, 33), (600, 3, 5), (700, 8, 64), (3, 0, 4)):
        shapes = (batch, inputs), (3 * hidden, hidden + inputs), (3 * hidden,), (batch, hidden), (batch, hidden)
        drawn = [torch.randn(shape).to(dtype) * hidden**-0.5 for shape in shapes]
        for wide in (False, True):
            given = [t.float() if wide and i > 2 and dtype != torch.float64 else t for i, t in enumerate(drawn)]
            assert ow.explain(ops.lltm_cell, *given).runs == "cuda_emulated.cpp"
            got = run(ops.lltm_cell, [t.clone() for t in given], {}, dtype)
            want = run(ops.lltm_cell.reference, [t.double() for t in drawn], {}, dtype)
            for k, (a, b) in enumerate(zip(got, want, strict=True)):
                assert a.shape == b.shape
                size = 1 + (b.abs().max().item() if b.numel() else 0.0)
                off = (a.double() - b).abs().max().item() / size if b.numel() else 0.0
                assert off < TOLERANCE[dtype], (batch, inputs, hidden, k, off)


@pytest.mark.timeout(1200)
def test_every_property_holds_that_tells_something_here(ops: Any) -> None:
    report = ow.check(ops.lltm_cell, only=["forward", "gradients", "special", "memory", "determinism", "vmap"])
    assert report.passed, str(report)
