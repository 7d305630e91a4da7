"""Operators load from anywhere on disk, and only from where nobody else could have put them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import opwright as ow

SOURCE = """
import torch
import opwright as ow

@ow.op
def {name}(x: torch.Tensor) -> torch.Tensor:
    return x * {factor}
"""


def write(file: Path, name: str, factor: int) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(SOURCE.format(name=name, factor=factor))
    return file


def test_a_file_a_folder_and_a_folder_of_folders_load(tmp_path: Path) -> None:
    one = torch.ones(1)
    assert ow.load(write(tmp_path / "plain.py", "loaded_file", 2)).loaded_file(one).item() == 2
    write(tmp_path / "ops" / "loaded_a" / "op.py", "loaded_a", 3)
    write(tmp_path / "ops" / "loaded_b" / "op.py", "loaded_b", 4)
    assert ow.load(str(tmp_path / "ops" / "loaded_a")).loaded_a(one).item() == 3
    both = ow.load(tmp_path / "ops")
    assert (both.loaded_a(one).item(), both.loaded_b(one).item()) == (3, 4)
    assert torch.ops.user.loaded_b(one).item() == 4


def test_loading_again_replaces(tmp_path: Path) -> None:
    file = write(tmp_path / "again" / "op.py", "loaded_again", 2)
    ow.load(file)
    write(file, "loaded_again", 5)
    os.utime(file, (1, 1))  # an unchanged or older time must not hide a change
    assert ow.load(file).loaded_again(torch.ones(1)).item() == 5
    assert torch.ops.user.loaded_again(torch.ones(1)).item() == 5


def test_two_files_may_not_take_one_name(tmp_path: Path) -> None:
    ow.load(write(tmp_path / "a.py", "loaded_twice", 1))
    with pytest.raises(ValueError, match="loaded_twice: user::loaded_twice is defined already"):
        ow.load(write(tmp_path / "b.py", "loaded_twice", 2))


def test_names_with_spaces_and_other_letters_load(tmp_path: Path) -> None:
    file = write(tmp_path / "mes opérateurs 'à moi'" / 'ein "Ding".py', "loaded_odd", 7)
    assert ow.load(file).loaded_odd(torch.ones(1)).item() == 7


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        ow.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"holds no operator: neither an op\.py nor folders with one"):
        ow.load(tmp_path)
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"defines no operator; put @ow\.op on an annotated function in it"):
        ow.load(empty)


def test_a_file_that_fails_leaves_no_half_loaded_module(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("raise RuntimeError('mine')\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mine"):
            ow.load(file)


@pytest.mark.skipif(os.name != "posix", reason="permissions of this kind are POSIX")
def test_code_that_others_could_have_written_is_not_loaded(tmp_path: Path) -> None:
    file = write(tmp_path / "open" / "op.py", "loaded_open", 1)
    file.chmod(0o666)
    with pytest.raises(PermissionError, match=r"can be written by everybody, so its code is not loaded; chmod o-w"):
        ow.load(file)
    file.chmod(0o644)
    file.parent.chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by everybody"):
        ow.load(file)
    file.parent.chmod(0o755)
    assert ow.load(file).loaded_open(torch.ones(1)).item() == 1


NEIGHBOURS = """
import torch
import opwright as ow
from .factor import FACTOR

@ow.op
def {name}(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR

{name}.kernel_file("cpu.cpp")
"""
KERNEL = """
#include <opwright/kernel.h>
#include "twice.h"
#define HIDDEN "hidden.h"
#include HIDDEN
Tensor run(const Tensor& x) {{ return map([](float v) {{ return twice(v); }}, x); }}
OPWRIGHT_KERNEL({name}, CPU, run);
"""


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
@pytest.mark.parametrize("foreign", ["factor.py", "cpu.cpp", "twice.h", "hidden.h", ""])
def test_what_belongs_to_a_folder_is_refused_as_the_folder_is(tmp_path: Path, foreign: str) -> None:
    name = f"beside_{foreign.partition('.')[0] or 'nothing'}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "op.py").write_text(NEIGHBOURS.format(name=name))
    (folder / "factor.py").write_text("FACTOR = 2")
    (folder / "cpu.cpp").write_text(KERNEL.format(name=name))
    (folder / "twice.h").write_text("inline float twice(float v) { return 2 * v; }")
    (folder / "hidden.h").write_text("// only the compiler finds it\n")
    if foreign:
        (folder / foreign).chmod(0o666)
        with pytest.raises(PermissionError, match=f"{foreign} can be written by everybody"):
            getattr(ow.load(folder), name)(torch.ones(1))
    else:
        assert getattr(ow.load(folder), name)(torch.ones(1)).item() == 2
