"""Libraries that come with a package: used where they fit, left where they do not run, refused where they must be."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from opwright.kit.build import cuda, shipped
from opwright.kit.build.trouble import Refused
from opwright.kit.spec.options import Options
from tests.kit.ship import shop

LIBRARY = b"what a library is made of"


class Package:
    """A package with a manifest and no more than bytes for a library: nothing is loaded here."""

    def __init__(self, root: Path) -> None:
        self.folder = shop.write_package(root)
        self.source = self.folder / "halved" / "cpu.cpp"
        self.library = self.folder / "_opwright" / "halved.so"
        self.library.parent.mkdir(mode=0o755)
        self.library.write_bytes(LIBRARY)
        self.library.chmod(0o644)
        files = [self.source, self.source.parent / "sign.h"]
        self.row: dict[str, Any] = {
            "source": "halved/cpu.cpp",
            "sources": {f.relative_to(self.folder).as_posix(): shipped.digest_of(f) for f in files},
            "device": "cpu",
            "namespace": "shop",
            "options": shipped.spell_options(Options(), Path()),
            "file": "halved.so",
            "size": len(LIBRARY),
            "sha256": hashlib.sha256(LIBRARY).hexdigest(),
            "system": sys.platform,
            "machine": os.uname().machine,
            "abi": "stable",
            "torch": [2, 10],
            "python": None,
            "glibc": [2, 17],
            "arch": [],
            "cuda": None,
            "key": "0123456789abcdef",
            "kernels": [],
        }
        self.content: dict[str, Any] = {"format": shipped.FORMAT, "libraries": [self.row], "own": []}
        self.write()

    def write(self, **changed: Any) -> None:
        self.row |= changed
        manifest = self.library.parent / "manifest.json"
        manifest.write_text(json.dumps(self.content))
        manifest.chmod(0o644)

    def look_up(self, **changed: Any) -> Any:
        given = {
            "file": self.source,
            "more": (self.source,),
            "namespace": "shop",
            "device": "cpu",
            "options": Options(),
        }
        shipped._parse.cache_clear()
        return shipped.look_up(**{**given, **changed})


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path)


def test_it_is_found_by_place_and_content(package: Package) -> None:
    assert package.look_up().library == package.library
    assert package.look_up(device="cuda") is None
    assert package.look_up(namespace="another") is None
    with pytest.raises(shipped.Unfit, match=r"ships for halved/cpu\.cpp was built with other options"):
        package.look_up(options=Options(debug=True))
    assert package.look_up(options=Options(arch=("9.0",))) is not None


@pytest.mark.parametrize("file", ["cpu.cpp", "sign.h"])
def test_an_edited_source_is_not_taken_for_what_was_built(package: Package, file: str) -> None:
    edited = package.source.parent / file
    edited.write_text(edited.read_text() + "\n")
    with pytest.raises(shipped.Unfit, match="was built of other sources than are here"):
        package.look_up()


def test_a_header_that_was_not_there_counts(package: Package) -> None:
    more = package.source.parent / "more.h"
    more.touch()
    with pytest.raises(shipped.Unfit, match="of other sources"):
        package.look_up(more=(package.source, more))


def test_folders_of_the_package_are_told_as_they_lie_in_it(package: Package) -> None:
    inside = Options(include=(str(package.source.parent.parent / "include"),))
    package.write(options=shipped.spell_options(inside, package.source.parents[1].resolve()))
    assert package.row["options"] == {"abi": "stable", "include": ["shop/include"]}
    assert package.look_up(options=inside).library == package.library
    with pytest.raises(shipped.Unfit, match="other options"):
        package.look_up(options=Options(include=("/usr/include",)))


@pytest.mark.parametrize("name", ["aten", "user"])
def test_a_package_cannot_take_a_namespace_by_its_name(tmp_path: Path, name: str) -> None:
    made = Package(tmp_path)
    made.source.parents[1].rename(tmp_path / name)
    made.source, made.library = (
        tmp_path / name / p.relative_to(tmp_path / "shop") for p in (made.source, made.library)
    )
    made.write(namespace=name)
    with pytest.raises(Refused, match="another package's"):
        made.look_up(namespace=name)


def test_without_its_sources_the_library_serves(package: Package) -> None:
    shutil.rmtree(package.source.parent)
    assert package.look_up().library == package.library


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "another platform": ({"machine": "riscv64"}, "is for linux on riscv64"),
    "another system": ({"system": "darwin"}, "is for darwin"),
    "a newer torch": ({"torch": [2, 99]}, r"needs torch 2\.99 or newer"),
    "another torch": ({"abi": "aten", "torch": "2.9.0"}, r"for torch 2\.9\.0 alone"),
    "another Python": ({"python": "cpython-39"}, "for cpython-39"),
    "a newer glibc": ({"glibc": [2, 99]}, r"needs glibc 2\.99"),
}


@pytest.mark.parametrize("why", UNFIT)
def test_what_does_not_run_here_says_why(package: Package, why: str) -> None:
    changed, says = UNFIT[why]
    package.write(**changed)
    with pytest.raises(shipped.Unfit, match=says):
        package.look_up()


def test_of_several_the_first_that_runs_is_taken(package: Package) -> None:
    package.content["libraries"].insert(0, {**package.row, "abi": "aten", "torch": "2.9.0"})
    package.write()
    assert package.look_up().about["abi"] == "stable"


def test_the_gpu_and_its_driver_are_asked(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    package.write(device="cuda", arch=["9.0"], cuda=[13, 0])
    found: Callable[[], Any] = lambda: package.look_up(device="cuda")  # noqa: E731
    assert found() is not None  # no GPU, nothing to ask
    monkeypatch.setattr(cuda, "gpus", lambda: [cuda.Gpu("an A100", (8, 0))])
    monkeypatch.setattr(cuda, "driver", lambda: (13, 0))
    with pytest.raises(shipped.Unfit, match=r"code for 9\.0, and none for the an A100"):
        found()
    monkeypatch.setattr(cuda, "gpus", lambda: [cuda.Gpu("an H200", (9, 0))])
    assert found() is not None
    monkeypatch.setattr(cuda, "driver", lambda: (12, 8))
    with pytest.raises(shipped.Unfit, match=r"built with CUDA 13\.0, and the driver here knows CUDA 12\.8"):
        found()


@pytest.mark.parametrize("length", [0, 1, len(LIBRARY) - 1])
def test_a_file_cut_short_does_not_run(package: Package, length: int) -> None:
    package.library.write_bytes(LIBRARY[:length])
    with pytest.raises(shipped.Unfit, match="cut short; install the package again"):
        package.look_up()


def test_a_missing_library_does_not_run(package: Package) -> None:
    package.library.unlink()
    with pytest.raises(shipped.Unfit, match="missing; install the package again"):
        package.look_up()


@pytest.mark.parametrize("name", ["file", "size", "sha256", "torch", "glibc", "sources", "kernels", "arch", "options"])
@pytest.mark.parametrize("value", [None, "..", 5, [1], {"a": 1}, "absent"])
def test_a_row_that_is_not_one_does_not_run(package: Package, name: str, value: Any) -> None:
    if value == "absent":
        del package.row[name]
        package.write()
    else:
        package.write(**{name: value})
    if isinstance(package.row.get(name), {"size": int, "options": dict, "sources": dict, "sha256": str}.get(name, ())):
        return  # it might be
    if (name, value) == ("glibc", None):
        return
    with pytest.raises(shipped.Unfit, match="damaged; install the package again"):
        package.look_up()


@pytest.mark.parametrize("file", ["../../outside.so", "/tmp/x.so", "a/b.so", "x\0.so", "..so/../x.so"])
def test_a_library_lies_beside_its_manifest_and_nowhere_else(package: Package, file: str) -> None:
    package.write(file=file)
    with pytest.raises(shipped.Unfit, match="damaged"):
        package.look_up()


def test_a_linked_folder_is_refused(package: Package) -> None:
    elsewhere = package.folder.parent / "elsewhere"
    package.library.parent.rename(elsewhere)
    package.library.parent.symlink_to(elsewhere)
    with pytest.raises(Refused, match="plain folder"):
        package.look_up()


def test_a_pipe_in_the_place_of_a_library_is_refused(package: Package) -> None:
    package.library.unlink()
    os.mkfifo(package.library, 0o644)
    with pytest.raises(Refused, match="no plain file"):
        package.look_up()


def test_a_manifest_above_the_package_is_nobodys(package: Package) -> None:
    shutil.move(package.library.parent, package.folder.parent / "_opwright")
    assert package.look_up() is None


def test_a_source_that_is_named_by_way_of_another_folder_is_found(package: Package) -> None:
    assert package.look_up(file=package.source.parent / ".." / "halved" / "cpu.cpp") is not None


def test_libraries_of_another_format_do_not_run(package: Package) -> None:
    package.content["format"] = shipped.FORMAT + 1
    package.write()
    with pytest.raises(shipped.Unfit, match="of a format that this opwright"):
        package.look_up()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}', b"\xff", b"[" * 200_000])
def test_a_damaged_manifest_does_not_run(package: Package, content: bytes) -> None:
    (package.library.parent / "manifest.json").write_bytes(content)
    with pytest.raises(shipped.Unfit, match="damaged; install the package again"):
        package.look_up()


def test_another_digest_is_refused(package: Package) -> None:
    package.library.write_bytes(LIBRARY[:-1] + b"!")
    with pytest.raises(Refused, match="not the one that was shipped"):
        package.look_up()


@pytest.mark.parametrize("place", ["library", "manifest", "folder"])
@pytest.mark.parametrize("mode", [0o002, 0o020])
def test_what_others_can_write_is_refused(
    package: Package, place: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = {"library": package.library, "manifest": package.library.parent / "manifest.json"}
    path = opened.get(place, package.library.parent)
    path.chmod(path.stat().st_mode | mode)
    if mode == 0o020:  # the group's, where that is not the user's own
        monkeypatch.setattr(os, "getgid", lambda: 4711)
        os.chown(path, -1, os.getgroups()[0] if os.getuid() else 1)
    with pytest.raises(Refused, match=f"{path.name} can be written by others.*chmod go-w"):
        package.look_up()


def test_a_link_is_refused(package: Package) -> None:
    elsewhere = package.folder.parent / "elsewhere.so"
    package.library.rename(elsewhere)
    package.library.symlink_to(elsewhere)
    with pytest.raises(Refused, match="is a link"):
        package.look_up()


@pytest.mark.parametrize("namespace", ["aten", "opwright", "opwright_native", "pytest"])
def test_the_namespace_of_another_package_is_refused(package: Package, namespace: str) -> None:
    package.write(namespace=namespace)
    with pytest.raises(Refused, match=f"namespace {namespace}, which is another package's"):
        package.look_up(namespace=namespace)


def test_a_namespace_of_ones_own_is_taken(package: Package) -> None:
    package.write(namespace="nobodys_yet")
    assert package.look_up(namespace="nobodys_yet") is not None


# --- in processes of their own ---------------------------------------------------------------------------------------

KERNEL, REFERENCE = "[0.75, 0.75]", "[0.5, 0.5]"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with its library in it."""
    folder = shop.write_package(tmp_path_factory.mktemp("shop"))
    done = shop.fill(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def copy(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / filled.name))


def test_a_machine_without_a_compiler_runs_the_kernel(copy: Path) -> None:
    done = shop.use(copy)
    assert done.stdout.splitlines()[:2] == [KERNEL] * 2, done.stdout + done.stderr
    assert "WARNED" not in done.stdout


@pytest.mark.slow
def test_where_it_does_not_run_the_reference_does_and_says_so_once(copy: Path) -> None:
    manifest = copy / "_opwright" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["libraries"][0]["torch"] = [2, 99]
    manifest.write_text(json.dumps(content))
    done = shop.use(copy)
    assert done.stdout.splitlines()[:2] == [REFERENCE] * 2, done.stdout + done.stderr
    assert done.stdout.count("WARNED") == 1
    assert done.stdout.count("needs torch 2.99 or newer") == 2  # the warning and explain
    assert "there is no C++ compiler" in done.stdout


@pytest.mark.slow
def test_a_missing_source_is_a_warning_and_the_reference(copy: Path) -> None:
    shutil.rmtree(copy / "_opwright")
    (copy / "halved" / "cpu.cpp").unlink()
    done = shop.use(copy, compiler=True)
    assert done.stdout.splitlines()[:2] == [REFERENCE] * 2, done.stdout + done.stderr
    assert done.stdout.count("WARNED") == 1
    assert "there is no source" in done.stdout


def test_another_digest_is_an_error_in_every_call(copy: Path) -> None:
    [library] = (copy / "_opwright").glob("*.so")
    library.write_bytes(library.read_bytes() + b"!")
    done = shop.use(copy)
    assert done.returncode != 0
    assert f"the library {library} is not the one that was shipped" in done.stderr


def test_an_edited_source_is_built_where_there_is_a_compiler(copy: Path) -> None:
    (copy / "halved" / "sign.h").write_text("#define SIGN 0.25\n")
    more = {"OPWRIGHT_CXXFLAGS": "-O0", "OPWRIGHT_CACHE_DIR": str(copy.parent / "cache")}
    assert shop.use(copy, compiler=True, **more).stdout.splitlines()[:2] == ["[0.25, 0.25]"] * 2


def test_a_namespace_that_is_nobodys_own_is_not_filled(tmp_path: Path) -> None:
    folder = shop.write_package(tmp_path)
    op = folder / "halved" / "op.py"
    op.write_text(op.read_text().replace("@ow.op\n", '@ow.op(namespace="user")\n'))
    done = shop.fill(folder)
    assert done.returncode != 0
    assert "halved: its namespace is 'user', which is not its own" in done.stderr


def test_what_uses_the_whole_of_torch_goes_along_as_source(tmp_path: Path) -> None:
    folder = shop.write_package(tmp_path, options='abi="aten"')
    done = shop.fill(folder)
    assert done.returncode == 0, done.stderr
    assert "left out halved/cpu.cpp: it uses the whole of torch" in done.stderr
    assert not (folder / "_opwright").exists()


def test_this_torch_is_one_that_libraries_are_made_for() -> None:
    release = shipped.release_of(torch.__version__)
    assert release is not None
    assert release >= (2, 10)
