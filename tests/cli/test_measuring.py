"""The gate: `opwright bench --compare BASE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from opwright.cli import measuring
from opwright.cli.commands import app
from opwright.kit.bench.results import Results
from opwright.kit.bench.run import Asked
from tests.kit.bench.recorded import failed, results, row


def case(us: float, **more: Any) -> list[dict[str, Any]]:
    place = {"op": "axpby", "qualname": "opwright::axpby", "case": "contiguous 2^20", "family": "contiguous", **more}
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
    place = {"op": "axpby", "qualname": "opwright::axpby", "case": "contiguous 2^20", "family": "contiguous"}
    wrong = [row("eager", "reference", 100, **place), failed("opwright", "operator", "wrong", "off by 1", **place)]  # type: ignore[arg-type]
    done, _ = gate(monkeypatch, base, [wrong] * 3)
    assert done.exit_code == 1
    assert "was right, is now wrong: off by 1" in done.stderr


def test_a_base_that_holds_nothing_of_what_is_asked_is_a_mistake(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    with pytest.raises(ValueError, match="holds no results of cube for cpu"):
        CliRunner().invoke(app, ["bench", "cube", "--device", "cpu", "--compare", str(base)], catch_exceptions=False)


def test_a_case_that_is_there_no_more_exits_with_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = {"case": "gone 2^20", "family": "gone"}
    results(*case(50), *case(50, **other)).save(tmp_path / "base.json")
    done, _ = gate(monkeypatch, tmp_path / "base.json", [case(50)])
    assert done.exit_code == 1
    assert "axpby gone 2^20 float32 cpu: is there no more" in done.stderr.replace("\n", " ")


def refused(*arguments: str) -> str:
    with pytest.raises(ValueError) as raised:
        CliRunner().invoke(app, ["bench", *arguments], catch_exceptions=False)
    return str(raised.value)


def test_only_the_named_dtypes_of_a_base_are_measured(base: Path) -> None:
    said = refused("axpby", "--device", "cpu", "--dtype", "float64", "--compare", str(base))
    assert "holds no results of axpby for cpu" in said


def test_results_of_another_machine_or_of_a_namesake_are_not_added_to(tmp_path: Path) -> None:
    other = Results({"cpu": "AMD EPYC 9999", "cores": 64, "threads": 128, "gpu": None})
    other.save(tmp_path / "other.json")
    said = refused("axpby", "--results", str(tmp_path / "other.json"))
    assert "holds results of another machine, amd-epyc-9999-128; name another file with --results" in said
    namesake = Results.here()
    namesake.add(case(50, qualname="user::axpby"), namesake.begin())
    namesake.save(tmp_path / "mine.json")
    said = refused("axpby", "--results", str(tmp_path / "mine.json"))
    assert "holds results of user::axpby, not of opwright::axpby" in said


def test_a_variant_that_nobody_knows_cannot_be_left_out() -> None:
    assert "there is no such variant; there are compiled, opwright" in refused("axpby", "--without", "compiledd")


def test_a_folder_with_the_name_of_a_library_operator_must_be_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cube").mkdir()
    (tmp_path / "cube" / "op.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert "write ./cube or opwright.cube" in refused("cube")
    assert [op.qualname for op in measuring.measurable(["opwright.cube"])] == ["opwright::cube"]


def test_an_operator_in_place_is_left_out_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert [op.name for op in measuring.measurable(["axpby_", "cube"])] == ["cube"]
    assert "not measured: axpby_: it works in place" in capsys.readouterr().err
    assert "axpby_: it works in place, and what its samples hold changes with each call; declare" in refused("axpby_")


def test_a_file_that_cannot_be_written_or_read_is_refused_at_once(tmp_path: Path) -> None:
    assert "there is no such folder" in refused("axpby", "--json", str(tmp_path / "none" / "x.json"))
    assert "it is a folder" in refused("axpby", "--json", str(tmp_path))
    (tmp_path / "bare.json").write_text('{"version": 2, "rows": []}')
    assert "lacks its machine or its runs" in refused("axpby", "--compare", str(tmp_path / "bare.json"))


def test_bench_says_what_to_do_where_something_is_slower(capsys: pytest.CaptureFixture[str]) -> None:
    again = [{"name": "backward", "runs": "reference", "why": "derived, it computes the forward again"}]
    slower = {"verdict": "1.4× slower"}
    rows = [{**r, "forward_backward_speedup": slower, "steps": again} for r in case(50)]
    measuring._advise(rows, Console())
    assert "axpby: slower at contiguous 2²⁰ float32: the derived backward computes the forward again. Declare a " in (
        capsys.readouterr().out.replace("\n", " ")
    )
    measuring._advise(case(50), Console())
    assert capsys.readouterr().out == ""
