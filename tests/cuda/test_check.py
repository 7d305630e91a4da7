"""The check on a GPU: the library's operators pass, operators that are wrong on purpose do not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from opwright.kit import register
from opwright.kit.verify import run
from opwright.kit.verify.report import Report
from opwright.kit.verify.sanitizer import _last_words, errors
from tests.broken_ops import Broken
from tests.broken_ops.cuda import BROKEN_ON_CUDA, FOLDER
from tests.cuda import needs_gpu

OPERATORS = [op for op in register.operators() if op.namespace == "opwright" and op.parent is None and op.kernels]


def check_all(**options: Any) -> Report:
    """One report on the whole library. What takes long runs on the CPU, so many operators are checked at once."""
    with ThreadPoolExecutor(5) as pool:
        reports = list(pool.map(lambda op: run.run([op], device="cuda", **options), OPERATORS))
    return Report([result for report in reports for result in report.results], 0, "cuda")


@needs_gpu
def test_compute_sanitizer_finds_nothing_in_the_library() -> None:
    report = check_all(only=["sanitizer"])
    print(report)
    assert report.passed, str(report)
    assert report.cases >= 4 * len(OPERATORS), str(report)


@needs_gpu
def test_every_operator_of_the_library_holds_every_property() -> None:
    report = check_all()
    print(report)
    assert report.passed, str(report)
    ran = {r.property for r in report.results if r.cases}
    assert {"forward", "gradients", "fake", "streams", "capture", "bands", "large"} <= ran, str(report)


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
    written = [line for line in (FOLDER / "op.py").read_text().splitlines() if line.startswith("def ")]
    names = {line.removeprefix("def ").partition("(")[0] for line in written} - {"shapes", "rows"}
    assert names == {b.name for b in BROKEN_ON_CUDA}
    assert len(names) >= 12
    assert len({b.mistake for b in BROKEN_ON_CUDA}) == len(BROKEN_ON_CUDA)


def test_what_compute_sanitizer_says_of_pytorchs_own_kernels_is_left_out() -> None:
    said = """
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void at::native::vectorized_elementwise_kernel<(int)4>(int)+0x90
=========     by thread (0,0,0) in block (0,0,0)
=========
========= Error: Race reported between Read access at reverse(const float *, float *, long)+0x1a0
=========     and Write access at reverse(const float *, float *, long)+0x150 [992 hazards]
=========
========= Invalid __global__ write of size 4 bytes
=========     at write(float *)+0x70
=========     by thread (5,0,0) in block (0,0,0)
=========     Access to 0x7f is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cudaLaunchKernel in launch.cu:5 [0x1] in libcudart.so
=========         Host Frame: c10::Dispatcher::callBoxed(c10::OperatorHandle const&) [0x2] in libtorch_cpu.so
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
    first, second = errors(said)
    assert first.startswith("Error: Race reported between Read access at reverse(")
    assert second == "Invalid __global__ write of size 4 bytes at write(float *)+0x70"
    assert errors("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors") == []
    assert _last_words(said + "CUDA out of memory\n========= ERROR SUMMARY: 0 errors") == "CUDA out of memory"
    assert _last_words("") == "nothing"
