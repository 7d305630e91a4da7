"""The check of the library's operators on a GPU, many at once.

Processes that share a GPU take turns, unless NVIDIA's MPS lets them run side by side: the check of all operators took
three minutes on an H200 after `nvidia-cuda-mps-control -d`, and did not end in nine without.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from opwright.kit.check import run
from opwright.kit.check.report import Report
from opwright.kit.dispatch import registry

OPERATORS = [op for op in registry.operators() if op.namespace == "opwright" and op.home is op and op.kernels]


def check_all(at_once: int, only: list[str]) -> Report:
    """One report on the whole library. A process of its own checks each, most of its time on the CPU."""
    with ThreadPoolExecutor(at_once) as pool:
        reports = list(pool.map(lambda op: run.run([op], device="cuda", only=only), OPERATORS))
    return Report([result for report in reports for result in report.results], 0, "cuda")
