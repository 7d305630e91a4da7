"""Figures in documents come from stored results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from opwright.kit.bench.figures import fill, picture, sizes, table
from tests.kit.bench.recorded import whole

ROOT = Path(__file__).parents[3]


def script() -> Any:
    spec = importlib.util.spec_from_file_location("figures_script", ROOT / "benchmarks" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_figures_in_the_documents_are_fresh() -> None:
    stale = [str(p.relative_to(ROOT)) for p in script().stale()]
    assert not stale, f"{', '.join(stale)} do not show what benchmarks/results holds: make figures"


def test_a_figure_that_drifts_from_its_results_is_noticed(tmp_path: Path) -> None:
    figures = script()
    (tmp_path / "docs").mkdir()
    for name in figures.DOCUMENTS:
        (tmp_path / name).write_text("<!-- figure: operators -->\n<!-- end of figure -->\n")
    whole().save(tmp_path / "benchmarks" / "results" / "one.json")
    assert len(figures.stale(tmp_path)) == len(figures.DOCUMENTS) + 1  # and the picture
    for file, text in figures.drawn(tmp_path).items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert figures.stale(tmp_path) == []
    drifted = tmp_path / "README.md"
    drifted.write_text(drifted.read_text(encoding="utf-8").replace("2.0× faster", "3.0× faster"), encoding="utf-8")
    assert figures.stale(tmp_path) == [drifted]


def test_tables_and_the_picture_show_the_operators() -> None:
    found = table(whole())
    assert "| `twist` | plain 1048576, cpu | 50.0 µs | 2.0× faster (1.8–2.2) |" in found
    assert "torch 2.13.0, 2026-01-01" in found
    assert "| opwright |" in sizes(whole())
    drawn = picture(whole())
    assert drawn.startswith("<svg")
    assert "2.00×" in drawn


def test_the_tables_of_lltm_hold_its_times_memory_and_errors(tmp_path: Path) -> None:
    timed = [
        {"case": "cell f+b, 2x3->4", "variant": variant, "p25_ms": ms, "ratio": ms / 0.5}
        for variant, ms in (("opwright", 0.5), ("eager", 1.0), ("opwright, graph", 0.1), ("eager, graph", 0.3))
    ]
    kept = [
        {"case": "peak memory f+b, T2", "variant": variant, "bytes": mib << 20}
        for variant, mib in (("opwright", 3), ("nn.LSTM", 5))
    ]
    wrong = [{"case": "error at T9 float32", "variant": "opwright", "error": 2e-6, "ratio": 0.9}]
    file = tmp_path / "lltm-cpu.json"
    about = {"machine": "two cores", "torch": "2.13.0", "date": "2026-01-01"}
    file.write_text(json.dumps({**about, "figures": timed + kept + wrong}), encoding="utf-8")
    found = script().recurrent(file)
    assert "| cell, 2x3->4 | 0.5 ms | eager 2.00 |\n| cell, 2x3->4, graph | 0.1 ms | eager 3.00 |\n" in found
    assert "- peak memory f+b, T2: 3 MiB; nn.LSTM 5 MiB\n- error at T9 float32: 2.0e-06, 0.90 of a loop" in found
    assert found.endswith("two cores, torch 2.13.0, 2026-01-01, from `benchmarks/results/lltm-cpu.json`.")


def test_an_unknown_figure_is_an_error() -> None:
    with pytest.raises(ValueError, match="there is no figure 'speed'; the figures are operators"):
        fill("<!-- figure: speed -->\n<!-- end of figure -->", {"operators": ""})
