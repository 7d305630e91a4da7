"""compute-sanitizer over the library's operators."""

from __future__ import annotations

from tests.cuda import needs_gpu
from tests.cuda.checked import OPERATORS, check_all

pytestmark = needs_gpu


def test_compute_sanitizer_finds_nothing_in_the_library() -> None:
    report = check_all(4, ["sanitizer"])  # four tools each
    print(report)
    assert report.passed, str(report)
    assert report.cases >= 4 * len(OPERATORS), str(report)
