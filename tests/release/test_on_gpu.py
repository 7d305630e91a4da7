"""What is stored of the tests on a GPU: what came of each file, and what has changed since."""

from __future__ import annotations

import ast
import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from release import stored
from tests import on_gpu

RIGHT = "def test_right(): assert True\n"
FILE = f"""
import pytest

{RIGHT}
def test_wrong(): assert False, "as it must be"
@pytest.mark.skip(reason="there is one GPU")
def test_left_out(): ...
"""
PARTS = ("kit/op.py", "ops/axpby/cuda.cu", "ops/cube/cuda.cu", "include/opwright/launch.cuh")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with two files for a GPU, of which one fails."""
    texts = {f"src/opwright/{part}": part for part in PARTS}
    texts |= {"tests/cuda/pytest.ini": "[pytest]\n", "tests/cuda/test_a.py": FILE, "tests/cuda/test_b.py": RIGHT}
    for place, text in texts.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def here(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tree as the one at hand, on a machine that says it has a GPU."""
    about = {"gpu": "made up", "torch": "2.13.0", "python": "3.11", "date": "2027-02-20"}
    monkeypatch.setattr(on_gpu, "ROOT", root)
    monkeypatch.setattr(on_gpu, "_about", lambda: about)
    return root


def run(root: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, dict[str, Any]]:
    file = root / "tests" / "on_gpu.json"
    monkeypatch.setattr("sys.argv", ["on_gpu.py", "--json", str(file), "--at-once", "1", *arguments])
    status = on_gpu.main()
    return status, json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def test_what_came_of_each_file_is_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, found = run(here, monkeypatch)
    assert status == 1
    a, b = (found["rows"][f"tests/cuda/test_{name}.py"] for name in "ab")
    assert (a["passed"], a["failures"]) == (1, ["tests/cuda/test_a.py::test_wrong"])
    assert a["skipped"] == ["tests/cuda/test_a.py::test_left_out: there is one GPU"]
    assert (b["passed"], b["failures"], b["gpu"], b["date"]) == (1, [], "made up", "2027-02-20")
    assert list(on_gpu.stale(here, found)) == ["tests/cuda/test_a.py: 1 failed"]
    (fault,) = stored.faults(here, "0.2.0", ("2.10", "2.15"), datetime.date(2027, 3, 1), 30)[2:3]
    assert fault == ("tests/on_gpu.json: tests/cuda/test_a.py: 1 failed", "make test-cuda")


def test_a_file_that_ends_without_a_report_has_failed(root: Path) -> None:
    file = root / "tests" / "cuda" / "test_b.py"
    file.write_text("import os\nos._exit(3)\n", encoding="utf-8")
    assert on_gpu.run(root, "tests/cuda/test_b.py")["failures"] == ["tests/cuda/test_b.py ended without a report"]


def test_a_file_that_does_not_load_has_failed(root: Path) -> None:
    (root / "tests" / "cuda" / "test_b.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    assert on_gpu.run(root, "tests/cuda/test_b.py")["failures"] == ["tests/cuda/test_b.py"]


def test_a_file_that_takes_too_long_has_failed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_gpu, "LONGEST", 2)
    (root / "tests" / "cuda" / "test_b.py").write_text("import time\ntime.sleep(60)\n", encoding="utf-8")
    assert on_gpu.run(root, "tests/cuda/test_b.py")["failures"]


def test_what_changed_since_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = run(here, monkeypatch, "tests/cuda/test_b.py")
    assert list(on_gpu.stale(here, found)) == ["tests/cuda/test_a.py has not run"]
    (here / "src" / "opwright" / "ops" / "cube" / "cuda.cu").write_text("other", encoding="utf-8")
    (here / "tests" / "cuda" / "test_b.py").write_text("def test_b(): ...\n", encoding="utf-8")
    for new in ("graphs/graph.py", "kit/op.py", "kit/check/run.py"):
        (here / "src" / "opwright" / new).parent.mkdir(exist_ok=True)
        (here / "src" / "opwright" / new).write_text("other", encoding="utf-8")
    changed = "the file, graphs, kit/check, kit/op.py, ops/cube"
    said = f"tests/cuda/test_b.py ran on 2027-02-20, and since then {changed} changed"
    assert list(on_gpu.stale(here, found)) == ["tests/cuda/test_a.py has not run", said]
    monkeypatch.setattr("sys.argv", ["on_gpu.py", "--json", str(here / "tests" / "on_gpu.json"), "--stale"])
    assert on_gpu.main() == 1
    (here / "tests" / "cuda" / "test_a.py").unlink()
    status, found = run(here, monkeypatch)
    assert (status, list(on_gpu.stale(here, found)), len(found["trees"])) == (0, [], 1)
    assert on_gpu.main() == 0


def test_what_never_ran_goes_first_and_what_is_not_begun_keeps_its_results(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, before = run(here, monkeypatch, "tests/cuda/test_a.py")
    capsys.readouterr()
    status, after = run(here, monkeypatch, "--within", "0")
    assert capsys.readouterr().out.splitlines() == [
        f"tests/cuda/test_{name}.py: there was no time left" for name in "ba"
    ]
    assert (status, after) == (1, before)


def test_of_what_is_as_old_the_longest_goes_first(root: Path) -> None:
    tree = on_gpu.sources(root)
    files = {name: f"tests/cuda/test_{name}.py" for name in "ab"}
    rows = {
        file: {"test": on_gpu._digest([root / file]), "tree": "then", "seconds": seconds}
        for file, seconds in ((files["a"], 3), (files["b"], 60))
    }
    stored = {"rows": rows, "trees": {"then": tree}}
    assert on_gpu.order(root, stored, [*files.values()]) == [files["b"], files["a"]]
    rows[files["a"]]["test"] = "another"
    assert on_gpu.order(root, stored, [*files.values()]) == [files["a"], files["b"]]
    assert on_gpu.order(root, {"rows": {}, "trees": {}}, [files["b"], files["a"]]) == [files["b"], files["a"]]


def test_without_a_gpu_nothing_runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_gpu, "ROOT", root)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="there is no GPU here"):
        run(root, monkeypatch)


def test_no_test_turns_cudnn_off_unawares() -> None:
    """As `cudnn.flags` does unless it is told otherwise: nothing there would then be tried as users have it."""
    found = 0
    for file in sorted((on_gpu.ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("cudnn.flags"):
                found += 1
                assert "enabled" in {k.arg for k in node.keywords}, f"{file}, line {node.lineno}"
    assert found
