"""The gate: `opwright bench --compare BASE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from opwright.cli import measuring
from opwright.cli.commands import app
from opwright.kit.bench.results import Results
from opwright.kit.bench.run import Asked
from tests.kit.bench.recorded import failed, results, row


def case(us: float, **more: Any) -> list[dict[str, Any]]:
    place = {"op": "axpby", "case": "contiguous 2^20", "family": "contiguous", **more}
    return [row("eager", "reference", 100, **place), row("opwright", "operator", us, **place)]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    results(*case(50)).save(tmp_path / "base.json")
    return tmp_path / "base.json"


def gate(monkeypatch: pytest.MonkeyPatch, base: Path, answers: list[list[dict[str, Any]]]) -> tuple[Any, list[Asked]]:
    asked: list[Asked] = []

    def measure(what: Asked, found: Results, file: Path | None) -> int:
        assert file is None  # a gate keeps nothing
        asked.append(what)
        number = found.begin()
        found.add(answers.pop(0), number)
        return number

    monkeypatch.setattr(measuring, "measure", measure)
    return CliRunner().invoke(app, ["bench", "axpby", "--device", "cpu", "--compare", str(base)]), asked


def test_unchanged_code_passes(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    done, asked = gate(monkeypatch, base, [case(52)])
    assert (done.exit_code, len(asked)) == (0, 1)
    assert asked[0].only == [("axpby", "contiguous 2^20", "float32", "cpu")]


def test_what_got_slower_exits_with_1(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    done, asked = gate(monkeypatch, base, [case(90), case(90), case(90)])
    assert (done.exit_code, len(asked)) == (1, 3)
    assert "axpby contiguous 2^20 float32 cpu, opwright: forward 1.80× slower" in done.stderr.replace("\n", " ")


def test_what_was_slow_once_passes(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    done, asked = gate(monkeypatch, base, [case(90), case(51)])
    assert (done.exit_code, len(asked)) == (0, 2)


def test_what_became_wrong_exits_with_1(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    place = {"op": "axpby", "case": "contiguous 2^20", "family": "contiguous"}
    wrong = [row("eager", "reference", 100, **place), failed("opwright", "operator", "wrong", "off by 1", **place)]  # type: ignore[arg-type]
    done, _ = gate(monkeypatch, base, [wrong] * 3)
    assert done.exit_code == 1
    assert "was right, is now wrong: off by 1" in done.stderr


def test_a_base_that_holds_nothing_of_what_is_asked_is_a_mistake(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    with pytest.raises(ValueError, match="holds no results of cube for cpu"):
        CliRunner().invoke(app, ["bench", "cube", "--device", "cpu", "--compare", str(base)], catch_exceptions=False)
