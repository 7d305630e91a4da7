"""The check on a GPU: the library's operators pass."""

from __future__ import annotations

from tests.cuda import needs_gpu
from tests.cuda.library import check_all


@needs_gpu
def test_every_operator_of_the_library_holds_every_property() -> None:
    report = check_all()
    print(report)
    assert report.passed, str(report)
    ran = {r.property for r in report.results if r.cases}
    assert {"forward", "gradients", "fake", "streams", "capture", "bands", "large"} <= ran, str(report)
