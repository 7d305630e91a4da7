"""A fixed tenth of PyTorch's operators, every form in every way; `make test-opinfo` takes all of them."""

from __future__ import annotations

import pytest

from tests.opinfo.examine import Settings
from tests.opinfo.running import chosen, run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_operators_of_a_fixed_tenth_do_what_the_plain_functions_do() -> None:
    report = run(Settings(), choose=chosen((), (1, 10)), jobs=1)
    assert len(report.results) > 50
    assert report.complaints() == []
