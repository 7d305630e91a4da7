"""The check of the whole library at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from opwright.kit import register
from opwright.kit.verify import run
from opwright.kit.verify.report import Report

OPERATORS = [op for op in register.operators() if op.namespace == "opwright" and op.home is op and op.kernels]


def check_all(**options: Any) -> Report:
    """One report on the whole library. What takes long runs on the CPU, so many operators are checked at once."""
    with ThreadPoolExecutor(5) as pool:
        reports = list(pool.map(lambda op: run.run([op], device="cuda", **options), OPERATORS))
    return Report([result for report in reports for result in report.results], 0, "cuda")
