"""Results files: one a machine, whole or not at all, of a version that is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opwright.kit.bench import results as stored
from opwright.kit.bench.limits import limits, write
from tests.kit.bench.recorded import results, row, whole


def test_a_file_gives_back_what_was_put_in(tmp_path: Path) -> None:
    found = whole()
    file = tmp_path / "one.json"
    found.save(file)
    again = stored.read(file)
    assert again.to_json() == found.to_json()
    assert [p.name for p in tmp_path.iterdir()] == ["one.json"]


def test_measuring_a_case_again_replaces_its_rows_and_keeps_the_others() -> None:
    found = results(row("eager", "reference", 100), row("gone", "rival", 70), row("eager", "reference", 5, op="turn"))
    number = found.begin()
    found.add([row("eager", "reference", 90), row("opwright", "operator", 40)], number)
    kept = found.to_json()
    assert [(r["op"], r["variant"], r["run"]) for r in kept["rows"]] == [
        ("turn", "eager", 0),
        ("twist", "eager", 1),
        ("twist", "opwright", 1),
    ]
    assert len(kept["runs"]) == 2
    assert kept["runs"][1]["versions"]["torch"]


def test_a_variant_that_fails_later_joins_the_rows_of_its_case() -> None:
    found = results()
    number = found.begin()
    found.add([row("compiled", "compiled", 1)], number)
    found.add([row("eager", "reference", 100), row("opwright", "operator", 40)], number)
    assert [r["variant"] for r in found.to_json()["rows"]] == ["eager", "compiled", "opwright"]


def test_runs_that_nothing_speaks_of_are_forgotten() -> None:
    found = results(row("eager", "reference", 100))
    found.add([row("eager", "reference", 90)], found.begin())
    assert len(found.to_json()["runs"]) == 1
    assert found.to_json()["rows"][0]["run"] == 0


def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    kept = whole().to_json()
    first: dict[str, Any] = {"machine": kept["machine"], "date": "2025-01-01", "commit": "old", "rows": kept["rows"]}
    first["versions"] = {"torch": "2.10"}
    first["rows"] = [{k: v for k, v in r.items() if k not in ("run", "status", "why")} for r in kept["rows"]]
    file = tmp_path / "first.json"
    file.write_text(json.dumps(first))
    found = stored.read(file)
    assert found.runs == [{"versions": {"torch": "2.10"}, "commit": "old", "date": "2025-01-01"}]
    assert {r["status"] for r in found.rows} == {"ok"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no results"),
        ('{"rows": 3}', "holds no results"),
        ('{"version": 99, "rows": []}', "has version 99 of the results' form, this opwright reads up to 2"),
        ('{"version": "new", "rows": []}', "has version 'new'"),
        ('{"machine": {}, "rows": [{"case": "x"}]}', "holds figures of a script"),
        ('{"version": 2, "machine": {}, "runs": [], "rows": [{"op": "x"}]}', "a row lacks case, dtype"),
    ],
)
def test_a_file_that_is_something_else_is_refused_with_a_reason(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "odd.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=why):
        stored.read(file)


def test_a_folder_gives_the_files_that_are_results(tmp_path: Path) -> None:
    whole().save(tmp_path / "one.json")
    (tmp_path / "other.json").write_text('{"rows": [{"cold_s": 3}]}')
    assert len(stored.read_all(tmp_path)) == 1


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kept.json"
    write(file, "old")

    def full(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(KeyboardInterrupt):
        write(file, "new")
    assert file.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["kept.json"]


def test_limits_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path))
    asked: list[str] = []

    def ask(what: str) -> Any:
        asked.append(what)
        return {"copy": [[1000, 5.0]], "float32": 7.0}.get(what)  # a product of bfloat16 crashes here

    for _ in range(2):
        found = limits("this machine", ("float32", "bfloat16"), ask)
        assert (found.copy, found.gemm) == ([(1000, 5.0)], {"float32": 7.0})
    assert asked == ["copy", "float32", "bfloat16"]
    limits("another machine", ("float32",), ask)
    assert asked[3:] == ["copy", "float32"]
    asked.clear()
    limits("this machine", ("float32",), ask, again=True)
    assert asked == ["copy", "float32"]
    (tmp_path / "limits.json").write_text("[broken")
    assert limits("this machine", ("float32",), ask).gemm == {"float32": 7.0}
