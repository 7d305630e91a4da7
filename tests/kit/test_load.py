"""Operators load from anywhere on disk, and only from where nobody else could have put them."""

from __future__ import annotations

import os
import runpy
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"import sys\nsys.exit(3)\n", r"importing it ends the program, by sys\.exit\(3\); let it do so only under"),
        (b"x = 1\0\n", "cannot contain null bytes: it is no Python source"),
        (b"\x7fELF\x02\x01\0\0\xff", "it is no Python source|can't decode|invalid"),
    ],
)
def test_a_file_that_ends_the_program_or_is_no_text_is_broken_like_any_other(
    tmp_path: Path, text: bytes, said: str
) -> None:
    name = f"loaded_beside_{len(text)}"
    write(tmp_path / name / "op.py", name, 2)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "op.py").write_bytes(text)
    with pytest.warns(RuntimeWarning, match=rf"(?s)({said}).*odd.op\.py, line \d"):
        found = ow.load(tmp_path)
    assert getattr(found, name)(torch.ones(1)).item() == 2
    with pytest.raises((ImportError, SyntaxError), match=said):
        ow.load(tmp_path / "odd")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from .shared import K", r"no shared\.py beside op\.py, and .* is in no package; put shared\.py there, or"),
        ("from . import shared", r"no shared\.py beside op\.py"),
        ("from .deep.shared import K", r"no deep\.py beside op\.py|no deep/shared\.py beside op\.py"),
        ("from ..shared import K", r"it leaves the folder, and .* is in no package; put what it imports beside it, or"),
        ("from ...shared import K", r"it leaves the folder.*the folder that holds both a package, by an __init__"),
    ],
)
def test_a_relative_import_outside_of_a_package_says_what_it_is(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "op.py").write_text(f"{line}\n")
    with pytest.raises(ImportError, match=said) as caught:
        ow.load(tmp_path / "alone")
    assert "_opwright_loaded" not in str(caught.value)


def test_a_folder_in_which_every_file_is_broken_names_them_all(tmp_path: Path) -> None:
    for name, text in (("first", "1 / 0\n"), ("second", "import nonexistent_lib\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "op.py").write_text(text)
    with pytest.raises(ImportError, match=r"(?s)none of its 2 files.*first.op\.py, line 1.*second.op\.py, line 1"):
        ow.load(tmp_path)


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


def test_a_script_that_another_program_runs_has_operators_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "my-script.py"
    file.write_text(
        "import torch\nimport opwright as ow\n\n@ow.op\ndef run_by_another(x: torch.Tensor) -> torch.Tensor:\n"
        "    return 2 * x\n"
    )
    made = runpy.run_path(str(file))["run_by_another"]  # whose module is called <run_path>
    assert made.namespace == "user"
    assert torch.ops.user.run_by_another(torch.ones(1)).item() == 2.0
