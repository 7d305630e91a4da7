"""Wheels of a user's own: by `opwright wheel`, pip and build, from a project and from a bare folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import _opwright_build
from opwright.kit.scaffold import scaffold, scaffold_package
from opwright.kit.ship.read import Wheel
from tests.kit.ship import shop

PROJECT = """
[build-system]
requires = ["setuptools>=77", "opwright"]
build-backend = "setuptools.build_meta"

[project]
name = "shop"
version = "1.2.3"
dependencies = ["opwright", "torch>=2.10"]

[tool.setuptools.packages.find]
where = ["src"]

{table}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one operator, whose kernel is quickly built."""
    shop.write_package(tmp_path / "project" / "src")
    return write(tmp_path / "project", "[tool.opwright]")


def write(project: Path, table: str) -> Path:
    (project / "pyproject.toml").write_text(PROJECT.format(table=table))
    return project


def run(*command: str, cwd: Path, fails: bool = False, **more: str) -> str:
    """What a command says; kernels are built quickly, into a cache of the test's."""
    more = {"OPWRIGHT_CXXFLAGS": "-O0", "OPWRIGHT_CACHE_DIR": str(cwd / "cache"), **more}
    done = shop.run([sys.executable, *command], cwd, True, **more)
    assert bool(done.returncode) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def the_wheel(folder: Path) -> Path:
    [file] = folder.glob("*.whl")
    return file


def test_a_project_becomes_a_wheel_for_every_python_and_torch(project: Path, tmp_path: Path) -> None:
    said = run("-m", "opwright", "wheel", str(project), "--no-check", "--to", "dist", cwd=tmp_path)
    about = Wheel.read(the_wheel(tmp_path / "dist"))
    assert (about.name, about.version, about.packages) == ("shop", "1.2.3", ("shop",))
    assert about.tag.startswith("py3-none-manylinux_2_")
    assert {*about.requires} == {"opwright", "torch>=2.10"}
    assert {"shop/halved/op.py", "shop/halved/cpu.cpp", "shop/halved/sign.h"} <= {*about.files}
    [row] = about.libraries
    assert {*row["sources"]} == {"halved/cpu.cpp", "halved/sign.h"}
    assert "runs with torch ≥ 2.10, any Python ≥ 3.10" in said
    assert "an older one would lack" in said


def test_without_the_table_it_is_any_other_project(project: Path, tmp_path: Path) -> None:
    write(project, "")
    said = run("-m", "opwright", "wheel", str(project), "--no-check", "--to", "dist", cwd=tmp_path, fails=True)
    assert "has no table [tool.opwright]; add one" in said


WITHOUT_TORCH = """
import sys, importlib.abc
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] not in ("torch", "opwright"), f"{name} was imported"
sys.meta_path.insert(0, Refuse())
from setuptools import build_meta
print(build_meta.build_wheel(sys.argv[1]))
"""


def test_the_hook_imports_torch_only_for_projects_of_ours(project: Path, tmp_path: Path) -> None:
    write(project, "")
    (tmp_path / "dist").mkdir()
    run("-c", WITHOUT_TORCH, str(tmp_path / "dist"), cwd=project)
    assert the_wheel(tmp_path / "dist").name == "shop-1.2.3-py3-none-any.whl"


@pytest.mark.parametrize(
    "table, says",
    [
        ('[tool.opwright]\narhc = ["9.0"]', "[tool.opwright] knows packages, cuda, arch, aten, natives, got arhc"),
        ('[tool.opwright]\naten = "both"', 'aten must be "sources" or "pinned", got \'both\''),
        ('[tool.opwright]\ncuda = "yes"', "cuda must be \"auto\", true or false, got 'yes'"),
    ],
)
def test_a_table_that_says_something_else_is_refused(tmp_path: Path, table: str, says: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(table)
    with pytest.raises(ValueError, match=r"pyproject\.toml: ") as raised:
        _opwright_build.read_wishes(file)
    assert says in str(raised.value)


def test_the_table_is_read_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    assert _opwright_build.read_wishes(file) is None
    file.write_text("[tool.other]\nopwright = 1")
    assert _opwright_build.read_wishes(file) is None
    file.write_text('[tool.opwright]\npackages = ["a"]')
    assert _opwright_build.read_wishes(file) == {"packages": ["a"]}


@pytest.mark.slow
def test_an_operator_that_fails_its_check_is_refused(project: Path, tmp_path: Path) -> None:
    # Its kernel computes something else than its reference.
    said = run("-m", "opwright", "wheel", str(project), "--to", "dist", cwd=tmp_path, fails=True)
    assert "an operator fails its check, so no wheel is made" in said
    assert "halved forward" in said
    assert not [*(tmp_path / "dist").glob("*.whl")]


@pytest.mark.slow
def test_a_kernel_that_does_not_compile_is_told(project: Path, tmp_path: Path) -> None:
    source = project / "src" / "shop" / "halved" / "cpu.cpp"
    source.write_text(source.read_text().replace("C(SIGN)", "C(NO_SUCH_SIGN)"))
    said = run("-m", "opwright", "wheel", str(project), "--no-check", "--to", "dist", cwd=tmp_path, fails=True)
    assert "cpu.cpp" in said
    assert "NO_SUCH_SIGN" in said


@pytest.mark.slow
def test_a_bare_folder_becomes_a_package(tmp_path: Path) -> None:
    scaffold("soft_step", tmp_path / "mine")
    said = run("-m", "opwright", "wheel", "mine", "--no-check", "--name", "soft_ops", "--to", "dist", cwd=tmp_path)
    about = Wheel.read(the_wheel(tmp_path / "dist"))
    assert (about.name, about.version, len(about.libraries)) == ("soft_ops", "0.1.0", 1)
    assert about.libraries[0]["namespace"] == "soft_ops"
    assert "1 libraries" in said


@pytest.mark.slow
def test_libraries_alone_for_other_build_systems(tmp_path: Path) -> None:
    folder = shop.write_package(tmp_path / "src")
    (folder / "halved" / "cuda.cu").write_text("no C++, which shows that nobody builds it\n")
    with (folder / "halved" / "op.py").open("a") as operator:
        operator.write('halved.kernel_file("cuda.cu")\n')
    (tmp_path / "pyproject.toml").write_text("[tool.opwright]\ncuda = false\n")
    said = run("-m", "opwright", "wheel", "--libraries", str(folder), cwd=tmp_path)
    assert "left out halved/cuda.cu: [tool.opwright] says cuda = false" in said.replace("\n", " ")
    usual = sum(file.stat().st_size for file in (folder / "_opwright").glob("*.so"))
    run("-m", "opwright", "wheel", "--libraries", str(folder), cwd=tmp_path, OPWRIGHT_DEBUG="1")
    assert usual == sum(
        file.stat().st_size for file in (folder / "_opwright").glob("*.so")
    )  # what a machine sets stays
    assert "tag the wheel py3-none-manylinux_2_" in said.replace("\n", " ")
    manifest = json.loads((folder / "_opwright" / "manifest.json").read_text())
    assert [row["source"] for row in manifest["libraries"]] == ["halved/cpu.cpp"]
    assert shop.use(folder).stdout.startswith("[0.75, 0.75]")
    kernel = folder / "halved" / "cpu.cpp"
    good = kernel.read_text()
    kernel.write_text(good.replace("return v", "return nothing + v"))
    failed = subprocess.run(
        [sys.executable, "-m", "opwright", "wheel", "--libraries", str(folder)], cwd=tmp_path, capture_output=True
    )
    assert failed.returncode == 2, failed.stderr
    kernel.write_text(good)
    assert sorted(folder.glob("_opwright*")) == [folder / "_opwright"]
    assert json.loads((folder / "_opwright" / "manifest.json").read_text()) == manifest


@pytest.mark.slow
def test_what_uses_the_whole_of_torch_is_pinned_where_its_author_says_so(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shop.write_package(project / "src", options='abi="aten"')
    write(project, '[tool.opwright]\naten = "pinned"')
    settings = project / "pyproject.toml"
    settings.write_text(
        settings.read_text().replace('"torch>=2.10"', '"torch>=2.10", "torchvision", "torch-geometric>=2"')
    )
    run("-m", "opwright", "wheel", str(project), "--no-check", "--to", "dist", cwd=tmp_path)
    about = Wheel.read(the_wheel(tmp_path / "dist"))
    [row] = about.libraries
    assert about.version == f"1.2.3+torch{row['torch']}"
    assert {*about.requires} == {"opwright", "torchvision", "torch-geometric>=2", f"torch=={row['torch']}"}
    assert row["abi"] == "aten"


@pytest.mark.slow
def test_what_a_project_has_of_its_own_stays(project: Path, tmp_path: Path) -> None:
    """Its package-data, its commands, its sources by way of another folder, and the version that it asks for."""
    package = project / "src" / "shop"
    (package / "notes.txt").write_text("kept")
    (package / "csrc").mkdir()
    for name in ("cpu.cpp", "sign.h"):
        (package / "halved" / name).rename(package / "csrc" / name)
    op = package / "halved" / "op.py"
    op.write_text(op.read_text().replace('"cpu.cpp"', '"../csrc/cpu.cpp"'))
    asks = "import importlib.metadata\n__version__ = importlib.metadata.version('shop')\n"
    (package / "__init__.py").write_text(asks + (package / "__init__.py").read_text())
    command = "from setuptools.command.build_py import build_py\nfrom pathlib import Path\nclass Mine(build_py):\n"
    command += "    def run(self):\n        super().run()\n        Path(self.build_lib, 'shop', 'made.py').touch()\n"
    (project / "mine.py").write_text(command)
    table = '[tool.opwright]\n[tool.setuptools.package-data]\nshop = ["*.txt"]\n[tool.setuptools.cmdclass]\n'
    write(project, table + 'build_py = "mine.Mine"')
    run("-m", "opwright", "wheel", str(project), "--no-check", "--to", "dist", cwd=tmp_path)
    about = Wheel.read(the_wheel(tmp_path / "dist"))
    assert {"shop/notes.txt", "shop/made.py", "shop/csrc/cpu.cpp"} <= {*about.files}
    assert [row["source"] for row in about.libraries] == ["csrc/cpu.cpp"]
    with zipfile.ZipFile(the_wheel(tmp_path / "dist")) as archive:
        archive.extractall(tmp_path / "site")
    assert shop.use(tmp_path / "site" / "shop").stdout.startswith("[0.75, 0.75]")


@pytest.mark.slow
def test_what_is_gone_from_a_project_is_gone_from_its_wheel(project: Path, tmp_path: Path) -> None:
    isolated = ("--quiet", "--no-build-isolation", "--no-deps")
    run("-m", "pip", "wheel", *isolated, "--wheel-dir", "first", str(project), cwd=tmp_path)
    shop.write_package(tmp_path / "other", name="third")
    (tmp_path / "other" / "shop" / "third").rename(project / "src" / "shop" / "third")
    shutil.rmtree(project / "src" / "shop" / "halved")
    (project / "src" / "shop" / "__init__.py").write_text("from .third.op import third as third\n")
    run("-m", "pip", "wheel", *isolated, "--wheel-dir", "second", str(project), cwd=tmp_path)
    about = Wheel.read(the_wheel(tmp_path / "second"))
    assert [row["source"] for row in about.libraries] == ["third/cpu.cpp"]
    assert not [name for name in about.files if "halved" in name]


@pytest.mark.slow
def test_a_broken_operator_is_not_left_out(project: Path, tmp_path: Path) -> None:
    broken = project / "src" / "shop" / "broken"
    broken.mkdir()
    (broken / "op.py").write_text("import opwright\nimport no_such_module\n")
    for how in ("--check", "--no-check"):
        said = run("-m", "opwright", "wheel", str(project), how, "--to", "dist", cwd=tmp_path, fails=True)
        assert "would be missing" in said
        assert "no_such_module" in said
    assert not [*(tmp_path / "dist").glob("*.whl")]


@pytest.mark.slow
def test_every_package_of_a_wheel_is_proved(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shop.write_package(project / "src", package="shop")
    shop.write_package(project / "src", package="stall", name="quartered", sign="0.5")
    write(project, "[tool.opwright]")
    run("-m", "opwright", "wheel", str(project), "--no-check", "--to", "dist", cwd=tmp_path)
    wheel = str(the_wheel(tmp_path / "dist"))
    said = run("-m", "opwright", "wheel", wheel, "--prove", sys.executable, cwd=tmp_path, fails=True)
    assert "2 libraries" in said
    assert "FAILED halved forward" in said  # the other one is right
    shutil.rmtree(project / "src")
    shutil.rmtree(tmp_path / "dist")
    shop.write_package(project / "src", package="shop", sign="0.5")  # now the second is wrong
    shop.write_package(project / "src", package="stall", name="quartered")
    run("-m", "opwright", "wheel", str(project), "--no-check", "--to", "dist", cwd=tmp_path)
    said = run("-m", "opwright", "wheel", wheel, "--prove", sys.executable, cwd=tmp_path, fails=True)
    assert "FAILED quartered forward" in said


@pytest.mark.slow
def test_pip_and_build_make_the_same_wheel(project: Path, tmp_path: Path) -> None:
    isolated = ("--no-build-isolation", "--no-deps")
    run("-m", "pip", "wheel", "--quiet", *isolated, "--wheel-dir", "by-pip", str(project), cwd=tmp_path)
    run("-m", "build", "--no-isolation", "--outdir", "by-build", str(project), cwd=tmp_path)
    first, second = (Wheel.read(the_wheel(tmp_path / f"by-{who}")) for who in ("pip", "build"))
    assert first == second
    assert len(first.libraries) == 1
    assert [*(tmp_path / "by-build").glob("*.tar.gz")]


@pytest.mark.slow
def test_a_wheel_is_proved_beside_the_torch_at_hand(tmp_path: Path) -> None:
    scaffold_package("soft_step", tmp_path / "soft_ops")
    dist = ["--to", str(tmp_path / "dist"), "--prove", sys.executable, "--results", str(tmp_path / "proofs.json")]
    said = run("-m", "opwright", "wheel", str(tmp_path / "soft_ops"), "--no-check", *dist, cwd=tmp_path)
    [proof] = json.loads((tmp_path / "proofs.json").read_text())
    assert "with no compiler" in said
    assert proof["compiler"] is None
    assert proof["unready"] == proof["failures"] == []
    assert proof["libraries"] == 2
    assert proof["cases"] > 100


@pytest.mark.slow
def test_a_wheel_that_does_not_hold_is_not_proved(project: Path, tmp_path: Path) -> None:
    run("-m", "opwright", "wheel", str(project), "--no-check", "--to", "dist", cwd=tmp_path)
    wheel = str(the_wheel(tmp_path / "dist"))
    said = run("-m", "opwright", "wheel", wheel, "--prove", sys.executable, cwd=tmp_path, fails=True)
    assert "FAILED halved forward" in said


@pytest.mark.slow
def test_what_to_prove_it_by_must_be_exact(tmp_path: Path) -> None:
    folder = tmp_path / "shop-1.0-py3-none-any.whl"
    with zipfile.ZipFile(folder, "w") as archive:
        archive.writestr("shop/__init__.py", "")
        archive.writestr("shop-1.0.dist-info/METADATA", "Name: shop\nVersion: 1.0\n")
    for where in ("torch>=2.10", "/no/such/python"):
        said = run("-m", "opwright", "wheel", str(folder), "--prove", where, cwd=tmp_path, fails=True)
        assert "prove by an exact version, such as torch==2.10.0, or by an interpreter's path" in said.replace(
            "\n", " "
        )


REFUSED = {
    "built for the CPU at hand": ('cxxflags=("-march=native",)', (), "-march=native builds for the CPU at hand"),
    "headers from elsewhere": ('include=("/opt/elsewhere",)', (), "it includes from /opt/elsewhere"),
    "PyTorch's own namespace": ("", ("--name", "aten"), "'aten' is another package's name"),
    "an installed package's name": ("", ("--name", "numpy"), "'numpy' is another package's name"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", REFUSED)
def test_what_would_not_serve_others_is_refused(tmp_path: Path, what: str) -> None:
    options, more, said = REFUSED[what]
    folder = shop.write_package(tmp_path / "bare", package="pieces", options=options)
    (folder / "__init__.py").unlink()
    found = run("-m", "opwright", "wheel", str(folder), "--no-check", *more, cwd=tmp_path, fails=True)
    assert said in found.replace("\n", " ")


@pytest.mark.slow
def test_a_package_inside_a_project_is_told_of_it(project: Path, tmp_path: Path) -> None:
    inside = str(project / "src" / "shop")
    said = run("-m", "opwright", "wheel", inside, "--no-check", "--to", "dist", cwd=tmp_path)
    assert f"lies in the project {project}" in said.replace("\n", " ")


@pytest.mark.slow
def test_paths_of_the_package_hold_where_it_is_installed(tmp_path: Path) -> None:
    where = 'include=(str(__import__("pathlib").Path(__file__).parents[1] / "more"),)'
    folder = shop.write_package(tmp_path / "first", options=where)
    (folder / "more").mkdir()
    (folder / "halved" / "sign.h").rename(folder / "more" / "sign.h")
    assert shop.fill(folder).returncode == 0
    (tmp_path / "second").mkdir()
    moved = folder.rename(tmp_path / "second" / "shop")
    assert "first" not in (moved / "_opwright" / "manifest.json").read_text()
    used = shop.use(moved)
    assert used.stdout.startswith("[0.75, 0.75]"), used.stdout + used.stderr
