"""The check on a GPU beyond 2³¹ elements."""

from __future__ import annotations

import pytest
import torch

from opwright.kit.check import run
from tests.cuda import needs_gpu
from tests.cuda.checked import OPERATORS

pytestmark = needs_gpu


def test_every_operator_of_the_library_is_right_beyond_2_to_the_31_elements() -> None:
    if torch.cuda.mem_get_info()[1] < 130 << 30:
        pytest.skip("the largest takes 86 GiB of memory, and others want some too")
    for op in OPERATORS:
        report = run.run([op], device="cuda", only=["large"])
        assert report.passed, str(report)
        # The gradient of conv_bn takes what a call has kept, and no sample of it is as large.
        assert all(r.cases for r in report.results if r.op != "conv_bn_backward"), str(report)
