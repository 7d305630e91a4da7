"""Nothing is loaded that somebody else could have put beside a file of ours, be it bytecode or an extension module."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import os
import py_compile
import shutil
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

import opwright as ow
from opwright.kit.build.foreign import open_way, refuse_foreign

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions of this kind are POSIX's")
as_root = pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can give files away")

STRANGER = 12345

SOURCE = """
import torch
import opwright as ow
{more}
@ow.op
def {name}(x: torch.Tensor) -> torch.Tensor:
    return x * {factor}
"""


@pytest.fixture
def sticky(tmp_path: Path) -> Path:
    """A folder in which everybody may make files, as /tmp is."""
    folder = tmp_path / "sticky"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def write(file: Path, name: str, more: str = "", factor: str = "2") -> Path:
    file.write_text(SOURCE.format(name=name, more=more, factor=factor))
    return file


def plant_bytecode(file: Path, text: str) -> None:
    """Bytecode of another text, with what Python compares of the file: its time and size."""
    evil = file.with_suffix(".evil")
    evil.write_text(text)
    cached = Path(importlib.util.cache_from_source(str(file)))
    cached.parent.mkdir(exist_ok=True)
    py_compile.compile(str(evil), cfile=str(cached), doraise=True)
    found = file.stat()
    data = bytearray(cached.read_bytes())
    data[8:12] = int(found.st_mtime).to_bytes(4, "little")
    data[12:16] = found.st_size.to_bytes(4, "little")
    cached.write_bytes(data)
    evil.unlink()
    if os.getuid() == 0:
        os.chown(cached.parent, STRANGER, STRANGER)
        os.chown(cached, STRANGER, STRANGER)


def test_bytecode_of_somebody_else_is_not_run(sticky: Path) -> None:
    file = write(sticky / "mine.py", "foreign_bytecode")
    plant_bytecode(file, "raise RuntimeError('the code of somebody else ran')")
    assert ow.load(file).foreign_bytecode(torch.ones(1)).item() == 2


def test_bytecode_of_neighbours_and_packages_is_not_run(sticky: Path) -> None:
    file = write(sticky / "op.py", "foreign_beside", "from .factor import F\nfrom .inner import G", "F * G")
    (sticky / "factor.py").write_text("F = 3")
    (sticky / "inner").mkdir()
    (sticky / "inner" / "__init__.py").write_text("from .deeper import G")
    (sticky / "inner" / "deeper.py").write_text("G = 5")
    for each in ("factor.py", "inner/__init__.py", "inner/deeper.py"):
        plant_bytecode(sticky / each, "raise RuntimeError('the code of somebody else ran')")
    assert ow.load(file).foreign_beside(torch.ones(1)).item() == 15


def test_no_bytecode_is_written(tmp_path: Path) -> None:
    file = write(tmp_path / "op.py", "foreign_writes", "from .factor import F", "F")
    (tmp_path / "factor.py").write_text("F = 3")
    ow.load(file)
    assert not (tmp_path / "__pycache__").exists()


def test_sources_and_tracebacks_show_what_was_loaded(tmp_path: Path) -> None:
    file = write(tmp_path / "op.py", "foreign_shown", "from .inner import fail", "fail(x)")
    (tmp_path / "inner.py").write_text("def fail(x):\n    raise RuntimeError('here')  # this line\n")
    op = ow.load(file).foreign_shown
    assert "return x * fail(x)" in inspect.getsource(op.reference)
    with pytest.raises(RuntimeError, match="here") as caught:
        op(torch.ones(1))
    assert "# this line" in "".join(traceback.format_exception(caught.value))


@as_root
@pytest.mark.parametrize("kind", ["extension", "bytecode", "source", "package", "link"])
def test_what_somebody_else_put_beside_a_file_is_refused(sticky: Path, tmp_path: Path, kind: str) -> None:
    file = write(sticky / "op.py", f"foreign_{kind}", "from .factor import F", "F")
    if kind == "extension":
        planted = sticky / f"factor{importlib.machinery.EXTENSION_SUFFIXES[0]}"
        planted.write_bytes(b"not even a library")
    elif kind == "package":
        planted = sticky / "factor"
        planted.mkdir()
        (planted / "__init__.py").write_text("F = 1")
        os.chown(planted / "__init__.py", STRANGER, STRANGER)
    elif kind == "link":
        (tmp_path / "elsewhere.py").write_text("F = 1")  # ours, and not meant to be loaded
        planted = sticky / "factor.py"
        planted.symlink_to(tmp_path / "elsewhere.py")
    else:
        source = sticky / "factor.py"
        source.write_text("F = 1")
        planted = source
        if kind == "bytecode":
            planted = sticky / "factor.pyc"
            py_compile.compile(str(source), cfile=str(planted), doraise=True)
            source.unlink()
    os.chown(planted, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(PermissionError, match=r"factor.* belongs to another user"):
        ow.load(file)


def test_a_folder_above_that_everybody_can_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open" / "mine"
    folder.mkdir(parents=True)
    file = write(folder / "op.py", "foreign_above")
    folder.parent.chmod(0o777)
    with pytest.raises(PermissionError, match="open can be written by everybody, so code below it is not loaded"):
        ow.load(file)
    folder.parent.chmod(0o1777)
    assert ow.load(file).foreign_above(torch.ones(1)).item() == 2


@as_root
def test_a_folder_above_that_belongs_to_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "theirs" / "mine"
    folder.mkdir(parents=True)
    file = write(folder / "op.py", "foreign_below")
    os.chown(folder.parent, STRANGER, STRANGER)
    with pytest.raises(PermissionError, match=r"folder .*theirs belongs to another user, so code below it is not loa"):
        ow.load(file)


@as_root
def test_whoever_owns_the_root_of_all_folders_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose root belongs to a user that has no number there."""
    (tmp_path / "above" / "mine").mkdir(parents=True)
    file = write(tmp_path / "above" / "mine" / "op.py", "foreign_rootless")
    os.chown(tmp_path / "above", 65534, 65534)
    assert open_way(file) is not None
    plain = os.stat

    def stat(place: str, **options: Any) -> Any:
        found = plain(place, **options)
        return os.stat_result((*found[:4], 65534, 65534, *found[6:])) if place == "/" else found

    monkeypatch.setattr(os, "stat", stat)
    assert open_way(file) is None
    assert ow.load(file).foreign_rootless(torch.ones(1)).item() == 2


def test_the_folders_behind_links_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "real").mkdir()
    write(tmp_path / "open" / "real" / "op.py", "foreign_linked")
    (tmp_path / "middle").symlink_to("open/../open/real")
    (tmp_path / "first").symlink_to(tmp_path / "middle")
    refuse_foreign(tmp_path / "first" / "op.py")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PermissionError, match="open can be written by everybody"):
        refuse_foreign(tmp_path / "first" / "op.py")
    (tmp_path / "open").chmod(0o755)


def test_a_file_that_is_changed_for_another_is_looked_at_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opwright.kit import load

    file = write(tmp_path / "op.py", "foreign_swapped")
    swapped = write(tmp_path / "other.py", "foreign_swapped")
    swapped.chmod(0o666)

    def refuse_and_swap(place: Path) -> None:
        refuse_foreign(place)
        if place == file:
            shutil.move(swapped, file)

    monkeypatch.setattr(load, "refuse_foreign", refuse_and_swap)
    with pytest.raises(PermissionError, match=r"op\.py can be written by everybody"):
        ow.load(file)
