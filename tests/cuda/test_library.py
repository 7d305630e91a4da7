"""The check on a GPU: the library's operators hold every property."""

from __future__ import annotations

from opwright.kit.check.property import facts_of, in_turn
from tests.cuda import needs_gpu
from tests.cuda.checked import OPERATORS, check_all

pytestmark = needs_gpu


def test_every_operator_of_the_library_holds_every_property() -> None:
    report = check_all(len(OPERATORS), [p for p in in_turn() if facts_of(p).serves("cuda") and p != "large"])
    print(report)
    assert report.passed, str(report)
    for op in OPERATORS:
        ran = {r.property for r in report.results if r.op == op.name and r.cases}
        assert {"forward", "gradients", "fake", "streams", "capture", "bands"} <= ran, str(report)
