"""opwright itself, from sdist and wheel, in an environment of its own: no compiler, no source tree, another folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from opwright.kit.build import own
from opwright.kit.ship.read import Wheel
from tests.kit.ship import shop

ROOT = Path(__file__).resolve().parents[3]
BUILD = "import sys; from setuptools import build_meta as b; print('\\n' + getattr(b, sys.argv[1])(sys.argv[2]))"

USE = """
import json, torch, opwright as ow
x = torch.linspace(-2, 2, 5, requires_grad=True)
for _ in range(2):
    y = ow.cube(x)
y.sum().backward()
assert torch.equal(x.grad, 3 * x.detach() ** 2), x.grad
assert y.grad_fn.name() == "CubeBackward", y.grad_fn
loaded = [str(library.loaded) for kernel in ow.cube.kernels if (library := kernel.library) and library.loaded]
print(json.dumps({"file": ow.__file__, "loaded": loaded, "said": str(ow.explain(ow.cube, x))}))
"""


def build(hook: str, folder: Path, to: Path) -> Path:
    to.mkdir(exist_ok=True)
    # What is in the cache is not compiled again, so that this takes seconds where `make` has built it.
    environment = {**os.environ, "OPWRIGHT_WHEEL": json.dumps({"cuda": False})}
    command = [sys.executable, "-c", BUILD, hook, str(to)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return to / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is made of the sdist."""
    root = tmp_path_factory.mktemp("wheel")
    tree = root / "tree"
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree)
    archive = build("build_sdist", tree, root / "sdist")
    with tarfile.open(archive) as opened:
        opened.extractall(root / "unpacked", filter="data")
    [folder] = (root / "unpacked").iterdir()
    return build("build_wheel", folder, root / "dist")


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter in a fresh environment with the wheel, which sees the torch already installed."""
    place = tmp_path_factory.mktemp("environment") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    [packages] = place.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    interpreter = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    return interpreter


def test_the_wheel_has_every_source_and_every_library(wheel: Path) -> None:
    about = Wheel.read(wheel)
    tracked = [f for f in (ROOT / "src").rglob("*") if f.is_file() and "__pycache__" not in f.parts]
    wanted = {f.relative_to(ROOT / "src").as_posix() for f in tracked if "egg-info" not in str(f)}
    assert wanted - {*about.files} == set()
    assert not [name for name in about.files if name.endswith(".pyc")]
    kernels = {f"ops/{f.parent.name}/cpu.cpp" for f in (ROOT / "src" / "opwright" / "ops").glob("*/cpu.cpp")}
    assert {row["source"] for row in about.libraries} == kernels
    assert {row["part"] for row in about.own} == {*own.parts()}
    assert about.tag.startswith("py3-none-manylinux_2_")
    assert [*map(int, about.tag.split("_")[1:3])] <= [2, 34]
    needed = {r.replace(" ", "") for r in about.requires if "extra" not in r}
    assert needed == {"torch>=2.10", "typer>=0.12", "rich>=13"}


def test_without_a_compiler_it_runs_kernels_with_native_gradients(python: Path, tmp_path: Path) -> None:
    done = shop.run([str(python), "-c", USE], tmp_path, compiler=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    home = str(python.parents[1])
    assert said["file"].startswith(home)
    assert [file for file in said["loaded"] if file.startswith(home)] == said["loaded"] != []
    assert "cpu.cpp" in said["said"]
    assert not done.stderr


@pytest.mark.slow
def test_without_a_compiler_it_checks_and_measures(python: Path, tmp_path: Path) -> None:
    check = [str(python), "-m", "opwright", "check", "cube", "--only", "forward", "--only", "memory"]
    done = shop.run(check, tmp_path, compiler=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 properties hold in" in done.stdout
    measure = ["bench", "cube", "--quick", "--seconds", "0.1", "--without", "compiled", "--results", "results.json"]
    done = shop.run([str(python), "-m", "opwright", *measure], tmp_path, compiler=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "results.json").read_text())
    assert "cube" in json.dumps(rows)


def test_where_no_native_part_fits_python_records_and_explain_says_so(python: Path, tmp_path: Path) -> None:
    manifest = next(python.parents[1].glob("lib/python*/site-packages/opwright/_opwright/manifest.json"))
    before = manifest.read_text()
    content = json.loads(before)
    content["own"] = [{**row, "torch": "2.9.0"} for row in content["own"]]
    program = "import torch, opwright as ow; x = torch.ones(2, requires_grad=True); y = ow.cube(x); y.sum().backward();"
    program += "assert x.grad.tolist() == [3, 3]; print(ow.explain(ow.cube, x))"
    try:
        manifest.write_text(json.dumps(content))
        done = shop.run([str(python), "-c", program], tmp_path, compiler=False)
    finally:
        manifest.write_text(before)
    assert done.returncode == 0, done.stderr
    assert "shipped with it for torch 2.9.0 alone" in done.stdout
