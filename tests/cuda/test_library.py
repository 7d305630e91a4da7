"""The check on a GPU: the library's operators pass."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from opwright.kit.check import run
from opwright.kit.check.property import facts_of, in_turn
from opwright.kit.check.report import Report
from opwright.kit.dispatch import registry
from tests.cuda import needs_gpu

pytestmark = needs_gpu
OPERATORS = [op for op in registry.operators() if op.namespace == "opwright" and op.home is op and op.kernels]


def check_all(**options: Any) -> Report:
    """One report on the whole library. What takes long runs on the CPU, so many operators are checked at once."""
    with ThreadPoolExecutor(5) as pool:
        reports = list(pool.map(lambda op: run.run([op], device="cuda", **options), OPERATORS))
    return Report([result for report in reports for result in report.results], 0, "cuda")


def test_compute_sanitizer_finds_nothing_in_the_library() -> None:
    report = check_all(only=["sanitizer"])
    print(report)
    assert report.passed, str(report)
    assert report.cases >= 4 * len(OPERATORS), str(report)


def test_every_operator_of_the_library_holds_every_property() -> None:
    report = check_all(only=[p for p in in_turn() if facts_of(p).serves("cuda") and p != "large"])
    print(report)
    assert report.passed, str(report)
    for op in OPERATORS:
        ran = {r.property for r in report.results if r.op == op.name and r.cases}
        assert {"forward", "gradients", "fake", "streams", "capture", "bands"} <= ran, str(report)


def test_every_operator_of_the_library_is_right_beyond_2_to_the_31_elements() -> None:
    if torch.cuda.mem_get_info()[1] < 130 << 30:
        pytest.skip("the largest takes 86 GiB of memory, and others want some too")
    for op in OPERATORS:
        report = run.run([op], device="cuda", only=["large"])
        assert report.passed, str(report)
        # The gradient of conv_bn takes what a call has kept, and no sample of it is as large.
        assert all(r.cases for r in report.results if r.op != "conv_bn_backward"), str(report)
