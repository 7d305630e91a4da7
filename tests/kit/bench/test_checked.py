"""Checks that are kept: of which operator, and of which state of its sources."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import opwright as ow
from opwright.cli.commands import app
from opwright.kit.bench import checked, places
from tests.kit.bench.recorded import results, row

SOURCE = '''
import torch
import opwright as ow

@ow.op
def {name}(x: torch.Tensor) -> torch.Tensor:
    """Twice x."""
    return {factor} * x

@{name}.samples
def _(make):
    yield make(3)
'''


def found(name: str, *, cases: int = 3, **more: Any) -> dict[str, Any]:
    return {"op": "cube", "property": name, "cases": cases, "failures": [], "skipped": None, **more}


def put(file: Path, op: ow.Op[..., Any], *listed: dict[str, Any], device: str = "cpu") -> None:
    checked.keep(file, [(checked.identify(op, file), list(listed))], device=device, seed=0)


def test_a_property_that_was_tried_again_replaces_what_was_known_of_it(tmp_path: Path) -> None:
    file = tmp_path / "checked-here.json"
    put(file, ow.cube, found("forward"), found("memory"))
    put(file, ow.cube, found("forward", cases=9))
    known = checked.known(tmp_path, "opwright::cube", ow.cube)
    assert known is not None
    assert {r["property"]: r["cases"] for r in known.results} == {"forward": 9, "memory": 3}
    assert known.state == "now"
    put(file, ow.cube, found("forward"), device="cuda")
    again = checked.known(tmp_path, "opwright::cube", ow.cube)
    assert again is not None
    assert [r["device"] for r in again.results] == ["cpu", "cpu", "cuda"]


def test_what_was_known_of_other_sources_is_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "checked-here.json"
    put(file, ow.cube, found("forward"), found("memory"))
    stored = json.loads(file.read_text())
    stored["checks"][0]["digest"] = "another"
    file.write_text(json.dumps(stored))
    known = checked.known(tmp_path, "opwright::cube", ow.cube)
    assert known is not None
    assert known.state == "before"
    put(file, ow.cube, found("forward"))
    known = checked.known(tmp_path, "opwright::cube", ow.cube)
    assert known is not None
    assert (known.state, len(known.results)) == ("now", 1)


def test_an_operator_that_changed_is_known_by_its_definition_and_by_its_files(tmp_path: Path) -> None:
    source, file = tmp_path / "thrice.py", tmp_path / "checked-here.json"
    source.write_text(SOURCE.format(name="thrice", factor=3))
    op = ow.load(str(source)).thrice
    put(file, op, found("forward", op="thrice"))
    place = tmp_path / "here.json"

    def state(op: ow.Op[..., Any] | None) -> str:
        known = checked.known(place, qualname, op)
        assert known is not None
        return known.state

    qualname = op.qualname
    assert (state(op), state(None)) == ("now", "now")
    source.write_text(SOURCE.format(name="thrice", factor=4))
    assert state(None) == "before"
    assert state(ow.load(str(source)).thrice) == "before"
    source.write_text("# a remark\n" + SOURCE.format(name="thrice", factor=3))
    assert state(ow.load(str(source)).thrice) == "now"
    source.unlink()
    assert state(None) == "unknown"


def test_a_kernel_that_changed_is_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = places.fingerprint(ow.cube)
    assert places.fingerprint(ow.cube) == before
    read = places.content
    monkeypatch.setattr(places, "content", lambda file: "new" if file.name == "cpu.cpp" else read(file))
    assert places.fingerprint(ow.cube) != before


def test_a_namesake_of_another_file_stays_out(tmp_path: Path) -> None:
    source, file = tmp_path / "half.py", tmp_path / "checked-here.json"
    source.write_text(SOURCE.format(name="half", factor=0.5))
    op = ow.load(str(source)).half
    put(file, op, found("forward", op="half"))
    stored = json.loads(file.read_text())
    assert stored["checks"][0]["origin"] == str(source)
    other = {**stored["checks"][0], "origin": "/elsewhere/half.py"}
    file.write_text(json.dumps({**stored, "checks": [other]}))
    assert checked.known(tmp_path, op.qualname, op) is None
    put(file, op, found("forward", op="half", cases=7))
    known = checked.known(tmp_path, op.qualname, op)
    assert known is not None
    assert [r["cases"] for r in known.results] == [7]
    assert checked.known(tmp_path, op.qualname, None) is None  # nobody can say whose it is


@pytest.mark.parametrize(
    ("text", "why"),
    [("{", "is not JSON"), ("[]", "is not what"), ('{"version": 9, "checks": []}', "has version 9"),
     ('{"version": 1, "checks": [{"op": "x"}]}', "is not what `opwright check` keeps")],
)  # fmt: skip
def test_a_file_that_is_something_else_is_refused_with_a_reason(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "checked-odd.json").write_text(text)
    with pytest.raises(ValueError, match=why):
        checked.known(tmp_path, "opwright::cube", None)


def test_each_project_has_a_private_folder_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPWRIGHT_RESULTS_DIR")
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    seen = []
    for name in ("one", "two"):
        (tmp_path / name / "inside").mkdir(parents=True)
        (tmp_path / name / "pyproject.toml").touch()
        monkeypatch.chdir(tmp_path / name / "inside")
        seen.append(places.folder())
        monkeypatch.chdir(tmp_path / name)
        assert places.folder() == seen[-1]
    assert seen[0] != seen[1]
    places.prepare(seen[0] / "x.json")
    for folder in (tmp_path / "cache", tmp_path / "cache" / "results", seen[0]):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (tmp_path / "one" / "benchmarks" / "results").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "one")
    assert places.folder() == Path("benchmarks") / "results"


@pytest.mark.slow
def test_a_report_knows_what_was_checked_a_minute_ago(tmp_path: Path) -> None:
    def opwright(*arguments: str) -> str:
        command = [sys.executable, "-m", "opwright", *arguments, "--results", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    out = tmp_path / "report.html"
    measured = results(*(row(v, k, us, op="cube", qualname="opwright::cube") for v, k, us in
                         (("eager", "reference", 100), ("opwright", "operator", 50))))  # fmt: skip
    measured.save(tmp_path / "kept.json")
    opwright("report", "--out", str(out))
    assert "cube</a> is faster; is not checked." in out.read_text()
    assert "properties hold in" in opwright("check", "cube", "--only", "forward", "--only", "determinism")
    opwright("report", "cube", "--out", str(out))
    text = out.read_text()
    assert "cube</a> holds and is faster." in text
    assert "4 properties hold in" in text
    file = next(tmp_path.glob("checked-*.json"))
    file.write_text(file.read_text().replace('"digest": "', '"digest": "x'))
    opwright("report", "--out", str(out))
    text = out.read_text()
    assert "checked before its last change" in text
    assert "properties hold in" not in text


def test_a_replay_of_one_case_is_not_kept_and_a_report_shows_the_named_alone(tmp_path: Path) -> None:
    case = ["--only", "forward", "--case", "cube:0.float32.plain", "--results", str(tmp_path)]
    done = CliRunner().invoke(app, ["check", "cube", *case])
    assert done.exit_code == 0, done.output
    assert not list(tmp_path.iterdir())
    results(
        *(row("opwright", "operator", 50, op=n, qualname=f"opwright::{n}") for n in ("cube", "scale"))
    ).save(tmp_path / "kept.json")  # fmt: skip
    options = ["--results", str(tmp_path), "--out", str(tmp_path / "out.html")]
    assert CliRunner().invoke(app, ["report", "scale", *options]).exit_code == 0
    text = (tmp_path / "out.html").read_text()
    assert 'id="op-scale"' in text
    assert "op-cube" not in text
    with pytest.raises(ValueError, match=r"there are no results of opwright\.axpby to report on"):
        CliRunner().invoke(app, ["report", "axpby", *options], catch_exceptions=False)


def test_a_failure_stands_until_the_sources_change(tmp_path: Path) -> None:
    file, about = tmp_path / "checked.json", {"op": "a::b", "origin": "x.py", "digest": "1", "sources": {}}

    def run(seed: int, *failures: str, digest: str = "1", name: str = "forward") -> dict[str, dict[str, Any]]:
        result = {"op": "b", "property": name, "cases": 3, "failures": [*failures]}
        checked.keep(file, [({**about, "digest": digest}, [result])], device="cpu", seed=seed)
        (entry,) = checked.read(file)
        return {r["property"]: r for r in entry["results"]}

    run(1, "wrong")
    assert run(2)["forward"]["failures"] == ["wrong"]
    assert run(2, name="leak")["forward"]["when"]["seed"] == 1
    assert run(1)["forward"]["failures"] == []
    run(1, "wrong")
    assert run(2, digest="2")["forward"]["failures"] == []
