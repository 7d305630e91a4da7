"""PyTorch's own operators as opaque operators of ours on a GPU: forward, backward and compiled training.

`python -m tests.opinfo --device cpu --forms opaque --checks values,gradients,compile --samples 1` runs the same code
without a GPU.
"""

from __future__ import annotations

import pytest

from tests.cuda import needs_gpu
from tests.opinfo.examine import Settings
from tests.opinfo.running import run

pytestmark = needs_gpu


@pytest.mark.timeout(900)
def test_opaque_operators_train_on_a_gpu() -> None:
    settings = Settings("cuda", forms=("opaque",), checks=("values", "gradients", "compile"), samples=1)
    report = run(settings, jobs=6)
    assert sum(not r.left_out for r in report.results) > 500
    assert report.complaints() == []
