"""What got slower or uses more memory, and what is but noise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from opwright.kit.bench.compare import Case, compare, confirmed
from tests.kit.bench.recorded import failed, results, row, spread

BASE = [row("eager", "reference", 100), row("opwright", "operator", 50), row("other", "rival", 50)]


def test_equal_results_say_nothing() -> None:
    assert compare(BASE, BASE) == []


def test_a_slower_machine_is_no_slower_operator() -> None:
    slow = [{**r, "forward_us": spread(r["forward_us"]["p50"] * 7)} for r in BASE]
    assert compare(BASE, slow) == []


def test_a_ratio_that_fell_out_of_its_spread_is_named() -> None:
    (forward, both) = compare(BASE, [row("opwright", "operator", 80)])
    assert str(forward) == (
        "twist plain 1048576 float32 cpu, opwright: forward 1.60× slower: 2.00× as fast as eager (1.80–2.20) "
        "→ 1.25× (1.12–1.38)"
    )
    assert both.text.startswith("forward + backward 1.60× slower")


def test_a_ratio_within_the_spread_or_the_tolerance_is_not() -> None:
    assert compare(BASE, [row("opwright", "operator", 56)]) == []
    narrow: dict[str, Any] = {"forward_speedup": spread(2.0, 0.001), "forward_backward_speedup": spread(2.0, 0.001)}
    near: dict[str, Any] = {"forward_speedup": spread(1.8, 0.001), "forward_backward_speedup": spread(1.8, 0.001)}
    assert compare([row("opwright", "operator", 50, **narrow)], [row("opwright", "operator", 50, **near)]) == []


def test_rivals_and_references_are_nobodys_regression() -> None:
    now = [row("eager", "reference", 100), row("opwright", "operator", 50), row("other", "rival", 500)]
    assert compare(BASE, now) == []


def test_memory_that_grew_is_named() -> None:
    (kept,) = compare(BASE, [row("opwright", "operator", 50, kept_bytes=8 << 20)])
    assert kept.text == "bytes kept for the backward 4.00 MiB → 8.00 MiB"
    assert compare(BASE, [row("opwright", "operator", 50, kept_bytes=(4 << 20) + 512)]) == []


def test_what_was_right_and_is_wrong_now_is_named() -> None:
    (change,) = compare(BASE, [failed("opwright", "operator", "wrong", "off by 1")])
    assert change.text == "was right, is now wrong: off by 1"


def test_what_is_measured_no_more_is_named() -> None:
    (change,) = compare(BASE, [failed("eager", "reference", "timeout", "not done after 12 s")])
    assert change.variant == "opwright"
    assert change.text == "was right, is now not measured (eager: timeout: not done after 12 s)"
    (change,) = compare(BASE, [row("eager", "reference", 100)])
    assert change.text == "was right, is now not measured"
    assert compare(BASE, [row("eager", "reference", 100)], without=["opwright"]) == []
    assert compare(BASE, []) == []


def test_only_what_stays_slow_is_reported() -> None:
    base = results(*BASE)
    slow, fine = [row("opwright", "operator", 80)], [row("opwright", "operator", 50)]
    asked: list[Sequence[Case]] = []

    def again(answers: list[Any]) -> Any:
        def measure(cases: Sequence[Case]) -> Any:
            asked.append(cases)
            return answers.pop(0)

        return measure

    assert confirmed(base, slow, again([fine])) == []
    assert confirmed(base, slow, again([slow, fine])) == []
    assert [c.what for c in confirmed(base, slow, again([slow, slow]))] == [
        "forward_speedup",
        "forward_backward_speedup",
    ]
    assert set(asked[0]) == {("twist", "plain 1048576", "float32", "cpu")}
    assert confirmed(base, fine, again([])) == []


OPERATOR = """
import time
import torch
import opwright as ow

@ow.op
def wave(x: torch.Tensor) -> torch.Tensor:
    "sin x."
    return torch.sin(x) * 2

@wave.kernel("cpu", ow.Domain(dtypes=(torch.float32,)))
def fast(x):
    {body}

wave.bench("plain", sizes=(1 << 14,))(lambda make, n: make(n))
"""


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_unchanged_code_is_met_with_silence_20_times_in_20_and_a_slower_one_is_not(tmp_path: Path) -> None:
    file, base = tmp_path / "wave.py", tmp_path / "base.json"
    quick = "return torch.sin(x).mul_(2)"

    def bench(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "opwright", "bench", str(file), "--without", "compiled", "--seconds", "0.3"]
        return subprocess.run([*command, *more], capture_output=True, text=True, check=False)

    file.write_text(OPERATOR.format(body=quick))
    assert bench("--results", str(base)).returncode == 0
    for _ in range(20):
        done = bench("--compare", str(base))
        assert done.returncode == 0, done.stderr
    file.write_text(OPERATOR.format(body="return torch.sin(x + torch.cos(x) * 0).mul_(2)"))
    done = bench("--compare", str(base))
    assert done.returncode == 1, done.stderr
    assert "slower" in done.stderr
