"""The check on a GPU: operators that are wrong on purpose do not pass."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from opwright.kit.check import run
from opwright.kit.check.report import Report
from tests.broken_ops import Broken
from tests.broken_ops.cuda import BROKEN_ON_CUDA, FOLDERS
from tests.cuda import needs_gpu


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """What the check finds in each broken operator, many at a time: what takes long is to start processes."""
    before, run.MOST_FAILURES = run.MOST_FAILURES, 1

    def one(broken: Broken) -> Report:
        return run.run([broken.op], device="cuda", only=[broken.property], sanitized=True)

    for broken in BROKEN_ON_CUDA:
        broken.op.build("cuda")
    try:
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(one, BROKEN_ON_CUDA))
    finally:
        run.MOST_FAILURES = before
    return {broken.name: report for broken, report in zip(BROKEN_ON_CUDA, found, strict=True)}


@needs_gpu
@pytest.mark.parametrize("broken", BROKEN_ON_CUDA, ids=lambda b: b.name)
def test_the_check_rejects(broken: Broken, reports: dict[str, Report]) -> None:
    report = reports[broken.name]
    (result,) = [r for r in report.results if r.op == broken.name]
    if result.skipped == "there is one GPU here":
        pytest.skip(result.skipped)
    said = [f.message for f in report.failures]
    assert any(broken.says in message for message in said), f"{broken.says!r} is not in {said}: {report}"


def test_every_broken_operator_is_listed() -> None:
    text = "".join((folder / "op.py").read_text() for folder in FOLDERS)
    written = [line for line in text.splitlines() if line.startswith("def ")]
    names = {line.removeprefix("def ").partition("(")[0] for line in written} - {"shapes", "rows", "_"}
    assert names == {b.name for b in BROKEN_ON_CUDA}
    assert len(names) >= 34
    assert len({b.mistake for b in BROKEN_ON_CUDA}) == len(BROKEN_ON_CUDA)
