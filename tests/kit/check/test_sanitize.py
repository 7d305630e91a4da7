"""The library's own kernels under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

from typing import Any

import pytest

import opwright as ow
from opwright.kit.check.properties import sanitize
from opwright.kit.check.report import Report
from opwright.kit.check.run import rungs
from tests.library import OPERATORS

BUILT = [op for op in OPERATORS if any(k.library and k.device == "cpu" for rung in rungs(op) for k in rung.kernels)]

pytestmark = pytest.mark.skipif(not sanitize.runtimes(), reason="this compiler brings no sanitizers")


def sanitized(op: ow.Op[..., Any], **choice: Any) -> Report:
    report: Report = ow.check(op, only=["sanitize"], **choice)
    report.raise_if_failed()
    assert report.cases > 0
    return report


@pytest.mark.slow
@pytest.mark.parametrize("op", BUILT, ids=lambda op: op.name)
def test_every_rung_and_saving_form_of_the_library_is_clean_under_the_sanitizers(op: ow.Op[..., Any]) -> None:
    report = sanitized(op)
    ran = {result.op for result in report.results if result.cases}
    assert ran == {rung.name for rung in rungs(op) if any(k.library and k.device == "cpu" for k in rung.kernels)}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.slow) for each in ("lltm_backward", "lltm", "lltm_saving")]
)
def test_a_layer_in_bfloat16_is_clean_under_the_sanitizers(name: str) -> None:
    assert sanitized(ow.lltm, rung=name, case=f"{name}:0.bfloat16.plain.forward").cases == 1


@pytest.mark.slow
def test_a_map_is_clean_under_the_sanitizers() -> None:
    sanitized(ow.scale)
