"""The check on a GPU: the library's operators pass."""

from __future__ import annotations

import torch

from tests.cuda import needs_gpu
from tests.cuda.library import OPERATORS, check_all


@needs_gpu
def test_every_operator_of_the_library_holds_every_property() -> None:
    report = check_all()
    print(report)
    assert report.passed, str(report)
    for op in OPERATORS:
        ran = {r.property for r in report.results if r.op == op.name and r.cases}
        assert {"forward", "gradients", "fake", "streams", "capture", "bands"} <= ran, str(report)
        if torch.cuda.mem_get_info()[1] > 130 << 30:  # what the largest takes, twice
            assert "large" in ran, str(report)
