"""The examples run, and show what they say they show."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lltm_and_lstm_learn_to_remember(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "curves.svg"
    sizes = ["--steps", "10", "--hidden", "16", "--batch", "32", "--updates", "120", "--rate", "0.02"]
    result = load("remember").main([*sizes, "--out", str(out)])
    first, last = (
        [sum(e for _, e in curve[part]) / 10 for curve in result["curves"].values()]
        for part in (slice(0, 10), slice(-10, None))
    )
    assert last[0] < 0.05 < first[0]  # who remembers nothing is off by 0.167
    assert last[1] < first[1]
    lines = xml.etree.ElementTree.parse(out).getroot().findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2
    said = capsys.readouterr().out
    assert "LLTM" in said
    assert "nn.LSTM" in said


def test_a_graph_network_learns_topics_as_torch_geometrics_does(capsys: pytest.CaptureFixture[str]) -> None:
    curves = load("citations").main(["--papers", "300", "--words", "32", "--updates", "25"])
    first, last = curves["opwright"][0], curves["opwright"][-1]
    assert last[1] < 0.6 * first[1]
    assert last[2] > first[2] + 0.15
    if "torch-geometric" in curves:
        for ours, theirs in zip(curves["opwright"], curves["torch-geometric"], strict=True):
            assert abs(ours[1] - theirs[1]) < 1e-3
    assert "accuracy" in capsys.readouterr().out
