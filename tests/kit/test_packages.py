"""Operators in a package of one's own are the same whoever loads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

OP = """
import torch
import opwright as ow
from ...common import FACTOR

@ow.op
def {name}(x: torch.Tensor) -> torch.Tensor:
    "x, scaled."
    return x * FACTOR

@{name}.samples
def _(make):
    yield make(3)
"""
KERNEL = """
#include <opwright/kernel.h>
Tensor half_cpu(const Tensor& x) {
    return compute(x, [&](auto zero) { return map([](decltype(zero) v) { return v * decltype(zero)(0.5); }, x); });
}
OPWRIGHT_KERNEL(half, CPU, half_cpu);
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """`my_pkg/ops/{half,third}/op.py`, which import from `my_pkg/common.py`; half has a kernel."""
    package = tmp_path / "src" / "my_pkg"
    for name in ("half", "third"):
        folder = package / "ops" / name
        folder.mkdir(parents=True)
        (folder / "op.py").write_text(OP.format(name=name))
    with (package / "ops" / "half" / "op.py").open("a") as file:
        file.write('half.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,)))\n')
    (package / "ops" / "half" / "cpu.cpp").write_text(KERNEL)
    (package / "__init__.py").write_text("")
    (package / "common.py").write_text("FACTOR = 0.5\n")
    return package


def run(*command: str, cwd: Path, fails: int = 0, env: dict[str, str] | None = None) -> Any:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, cwd=cwd, env=os.environ | (env or {})
    )
    assert done.returncode == fails, done.stdout + done.stderr
    return done


def listed(name: str, cwd: Path, fails: int = 0) -> list[str]:
    out = run("-m", "opwright", "list", name, "--json", cwd=cwd, fails=fails).stdout
    return [row["op"] for row in json.loads(out)]


@pytest.mark.slow
def test_modules_packages_and_folders_name_the_same_operators(package: Path) -> None:
    both, src = ["my_pkg.half", "my_pkg.third"], package.parent
    assert listed("my_pkg", src) == both
    assert listed("my_pkg.ops", src) == both
    assert listed(str(package), package.parent.parent) == both
    assert listed("src/my_pkg/ops", src.parent) == both
    assert listed("my_pkg.ops.half.op", src) == both[:1]
    assert listed("my_pkg.ops.half.op.half", src) == both[:1]
    assert listed("./my_pkg/ops/third/op.py", src) == both[1:]


USE = """
import torch, opwright as ow
from my_pkg.ops.half.op import half
x = torch.ones(3)
print(half(x).tolist(), ow.explain(half, x).runs, half.qualname)
"""


@pytest.mark.slow
def test_what_build_built_is_what_an_import_uses(package: Path, tmp_path: Path) -> None:
    build, prebuilt = ("-m", "opwright", "build", "my_pkg", "--to"), str(tmp_path / "prebuilt")
    quick = {"OPWRIGHT_CXXFLAGS": "-O0", "OPWRIGHT_CACHE_DIR": str(tmp_path / "cache")}
    done = run(*build, prebuilt, cwd=package.parent, env=quick)
    assert "1 of 1 libraries are built" in done.stderr
    assert "run `opwright build`" in done.stderr  # how to get the rest, which nobody asked for
    used, unbuilt = "[0.5, 0.5, 0.5] cpu.cpp my_pkg::half\n", quick | {"OPWRIGHT_BUILD": "0"}
    assert run("-c", USE, cwd=package.parent, env=unbuilt).stdout == used
    other = unbuilt | {"OPWRIGHT_CACHE_DIR": str(tmp_path / "other"), "OPWRIGHT_PREBUILT": prebuilt}
    assert run("-c", USE, cwd=package.parent, env=other).stdout == used


@pytest.mark.slow
def test_a_package_is_checked_by_folder_and_by_name(package: Path) -> None:
    for name, cwd in (("my_pkg", package.parent), (str(package / "ops" / "third"), package.parent.parent)):
        done = run("-m", "opwright", "check", name, "--only", "forward", cwd=cwd, env={"OPWRIGHT_CXXFLAGS": "-O0"})
        assert "properties hold in" in done.stdout
        assert "in this process" not in done.stdout


def test_one_broken_folder_does_not_hide_the_others(package: Path) -> None:
    for name, text in (("bad", "import nonexistent_lib\n"), ("worse", "import torch\ndef f(:\n")):
        (package / "ops" / name).mkdir()
        (package / "ops" / name / "op.py").write_text(text)
    done = run("-m", "opwright", "list", "my_pkg", "--json", cwd=package.parent, fails=1)
    assert len(json.loads(done.stdout)) == 2
    assert (
        "ModuleNotFoundError: No module named 'nonexistent_lib'\n  my_pkg/ops/bad/op.py, line 1: import" in done.stderr
    )
    assert "SyntaxError: invalid syntax\n  my_pkg/ops/worse/op.py, line 2: def f(:" in done.stderr
    code = f"""
import warnings
import opwright as ow
with warnings.catch_warnings(record=True) as caught:
    found = ow.load({str(package / "ops")!r})
print(len(caught), found.half.name)
for name in ("bad", "fourth"):
    try:
        getattr(found, name)
    except Exception as e:
        print(type(e).__name__, e)
"""
    told = run("-c", code, cwd=package.parent.parent).stdout.splitlines()
    assert told[:2] == ["2 half", "ModuleNotFoundError No module named 'nonexistent_lib'"]
    assert told[2] == "AttributeError no operator 'fourth' was loaded; there are half, third"


def test_another_copy_of_an_imported_package_is_refused(package: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "my_pkg"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    code = f"import my_pkg, opwright as ow\now.load({str(package / 'ops' / 'third')!r})"
    said = run("-c", code, cwd=other.parent, fails=1).stderr
    assert "work with one of them: `pip install -e" in said


@pytest.mark.slow
def test_a_file_is_read_anew_when_it_is_loaded_again(package: Path) -> None:
    file = package / "ops" / "third" / "op.py"
    code = f"""
import torch, opwright as ow
first = ow.load({str(file)!r}).third
text = open({str(file)!r}).read()
open({str(file)!r}, "w").write(text.replace("x * FACTOR", "x * FACTOR * 2"))
second = ow.load({str(file)!r}).third
print(first is second, second(torch.ones(1)).item())
"""
    assert run("-c", code, cwd=package.parent.parent).stdout == "False 1.0\n"


@pytest.mark.skipif(os.name != "posix", reason="there are no such permissions here")
def test_a_package_that_others_can_write_is_not_loaded(package: Path) -> None:
    (package / "common.py").chmod(0o666)
    code = f"import opwright as ow\now.load({str(package / 'ops' / 'third')!r})"
    assert "common.py can be written by everybody" in run("-c", code, cwd=package.parent.parent, fails=1).stderr


def test_a_missing_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    said = run("-m", "opwright", "list", "axbpy", cwd=tmp_path, fails=2).stderr
    assert said == "opwright: there is no operator, file or module 'axbpy'; did you mean axpby?\n"
    assert "opwright.cube" in run("-m", "opwright", "list", "cube", "--json", cwd=tmp_path).stdout
    assert "  forward   kernel  " in run("-m", "opwright", "explain", "cube", cwd=tmp_path).stdout


def test_every_name_that_list_prints_is_taken_again(package: Path) -> None:
    (package / "ops" / "bad").mkdir()
    (package / "ops" / "bad" / "op.py").write_text("import nonexistent_lib\n")  # in nobody's way
    assert listed("my_pkg.third", package.parent) == ["my_pkg.third"]
    assert listed("my_pkg.half_backward", package.parent) == ["my_pkg.half_backward"]


@pytest.mark.parametrize(
    ("name", "meant"), [("my_pgk", "my_pkg"), ("my_pkg.thrid", "my_pkg.third"), ("my_pkg.comon", "my_pkg.common")]
)
def test_a_missing_module_is_answered_with_the_nearest(package: Path, name: str, meant: str) -> None:
    said = run("-m", "opwright", "list", name, cwd=package.parent, fails=2).stderr
    assert said == f"opwright: there is no operator, file or module '{name}'; did you mean {meant}?\n"


def test_a_package_that_ends_the_program_is_named(package: Path) -> None:
    (package / "__init__.py").write_text("raise SystemExit(0)\n")
    for name in ("my_pkg", "my_pkg.ops", "./my_pkg/ops/third"):
        said = run("-m", "opwright", "list", name, cwd=package.parent, fails=2).stderr
        assert "importing it ends the program, by sys.exit(0)" in said
        assert "my_pkg/__init__.py, line 1: raise SystemExit(0)" in said


def test_a_folder_does_not_become_a_place_to_import_from(package: Path) -> None:
    """Only what was asked for is found there: anybody's json.py is not."""
    command = package.parent.parent / "command.py"  # as the installed one is: somewhere else
    command.write_text("from opwright.cli import main; main()")
    for name in ("json", "colorsys", "nonexistent_lib"):
        (package.parent / f"{name}.py").write_text("raise SystemExit('imported')")
    (package / "ops" / "third" / "op.py").write_text("import colorsys, nonexistent_lib\n")
    done = run(str(command), "list", "my_pkg", "--json", cwd=package.parent, fails=1)
    assert "No module named 'nonexistent_lib'" in done.stderr
    assert [row["op"] for row in json.loads(done.stdout)] == ["my_pkg.half"]
