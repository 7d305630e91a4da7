"""The report: one HTML file that opens from disk, with all that is known of some operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opwright.kit.bench.checked import Checked
from opwright.kit.bench.limits import write
from opwright.kit.bench.report.page import page
from opwright.kit.bench.results import Results
from opwright.kit.op import Op


def write_report(
    file: Path,
    results: Sequence[Results],
    operators: Mapping[str, Op[..., Any]],
    known: Mapping[str, Checked] | None = None,
) -> None:
    """Write the report of stored results. `operators`, those that can be loaded here, show their sources; `known` is
    what the check found. Both go by name."""
    write(file, page(results, operators, known))
