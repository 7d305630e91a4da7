"""Never a stale object: what is loaded was made of what lies on the disk, whatever was edited, and when."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import opwright as ow
from opwright.kit.build import cache, compile, program
from opwright.kit.build.plan import Plan
from opwright.kit.build.trouble import BuildError
from opwright.kit.spec.options import Options

# No header but their own, so that each build takes a fraction of a second.
PLAIN = 'extern "C" int answer() { return ANSWER; }\n'


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWRIGHT_PCH", "0")
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def define(file: Path, value: int) -> Path:
    return write(file, f"#define ANSWER {value}\n")


def answer(*sources: Path, **keywords: Any) -> int:
    path = ow.load_extension(sources, name="stale", is_python_module=False, **keywords)
    return int(ctypes.CDLL(path).answer())


WAYS: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "beside it": ('#include "value.h"\n', lambda _: []),
    "by a macro": ('#define H "value.h"\n#include H\n', lambda _: []),
    "asked for": ('#if __has_include("value.h")\n#define H "value.h"\n#include H\n#endif\n', lambda _: []),
    "-I": ("#include <inc/value.h>\n", lambda folder: [f"-I{folder.parent}"]),
    "-I, relative": ("#include <inc/value.h>\n", lambda _: ["-I", ".."]),
    "-isystem": ("#include <value.h>\n", lambda folder: ["-isystem", str(folder)]),
    "-include": ("", lambda folder: ["-include", str(folder / "value.h")]),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_edited_header_is_taken_up_in_one_process_however_it_is_found(way: str, tmp_path: Path) -> None:
    folder = tmp_path / "inc"
    header, (lines, flags) = define(folder / "value.h", 1), WAYS[way]
    source = write(folder / "a.cpp", lines + PLAIN)
    for value in (1, 2, 1):
        define(header, value)
        assert answer(source, extra_cflags=flags(folder)) == value


def test_a_copy_of_a_project_is_made_of_its_own_headers(tmp_path: Path) -> None:
    first = tmp_path / "first"
    source = write(first / "a.cpp", '#define H "value.h"\n#include H\n' + PLAIN)
    define(first / "value.h", 1)
    assert answer(source) == 1
    shutil.copytree(first, tmp_path / "second")
    define(tmp_path / "second" / "value.h", 3)
    assert answer(tmp_path / "second" / "a.cpp") == 3
    assert answer(source) == 1


def test_headers_that_exchange_contents_make_another_library(tmp_path: Path) -> None:
    names = ("one.h", "two.h")
    lines = [f'#include "{name}"\nconstexpr int {name[:3]} = VALUE;\n#undef VALUE\n' for name in names]
    source = write(tmp_path / "a.cpp", "".join(lines) + "#define ANSWER 10 * one + two\n" + PLAIN)
    for values in ((1, 2), (2, 1)):
        for name, value in zip(names, values, strict=True):
            write(tmp_path / name, f"#define VALUE {value}\n")
        assert answer(source) == 10 * values[0] + values[1]


def test_headers_beside_the_cache_are_no_part_of_it(tmp_path: Path) -> None:
    header = define(tmp_path / "cache_of_values" / "value.h", 1)
    source = write(tmp_path / "a.cpp", f'#define H "{header}"\n#include H\n' + PLAIN)
    assert answer(source) == 1
    define(header, 2)
    assert answer(source) == 2


def test_an_edited_archive_is_linked_again(tmp_path: Path) -> None:
    source = write(tmp_path / "a.cpp", 'int inside();\nextern "C" int answer() { return inside(); }\n')
    for value in (1, 2):
        write(tmp_path / "b.cpp", f"int inside() {{ return {value}; }}\n")
        for command in (["g++", "-fPIC", "-c", "b.cpp"], ["ar", "rc", "libb.a", "b.o"]):
            assert program.run(command, cwd=tmp_path).returncode == 0
        assert answer(source, extra_ldflags=[f"-L{tmp_path}", "-lb"]) == value


@pytest.mark.parametrize(
    "data",
    [
        "inline int& table() { static int t = VALUE; return t; }",
        "inline int held = VALUE; int& table() { return held; }",
    ],
)
def test_an_edited_table_of_an_extension_is_the_new_one(data: str, tmp_path: Path) -> None:
    for value in (1, 7):
        source = write(tmp_path / "a.cpp", f"#define VALUE {value}\n#define ANSWER table()\n{data}\n{PLAIN}")
        assert answer(source) == value


def saved_while_compiling(monkeypatch: pytest.MonkeyPatch, file: Path, during: int, after: int) -> None:
    """The first time that something is compiled, a file is saved: the compiler reads one value, the disk has another
    once it is done."""
    run: Callable[..., Any] = program.run
    waiting = [file]

    def saving(command: list[str], **how: Any) -> Any:
        if "-c" not in command or not waiting:
            return run(command, **how)
        waiting.clear()
        define(file, during)
        done = run(command, **how)
        define(file, after)
        return done

    monkeypatch.setattr(program, "run", saving)


@pytest.mark.parametrize("extension", [True, False])
@pytest.mark.parametrize(("during", "after"), [(1, 2), (2, 2), (2, 1)])
def test_what_is_saved_while_it_is_built_leaves_no_stale_library(
    extension: bool, during: int, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = define(tmp_path / "value.h", 1)
    source = write(tmp_path / "a.cpp", '#include "value.h"\n#pragma GCC visibility push(default)\n' + PLAIN)
    saved_while_compiling(monkeypatch, header, during, after)
    options = Options(abi="aten")

    def built() -> int:
        found = compile.build(Plan("saved", (source,), options, extension=extension)).library
        return int(ctypes.CDLL(str(found)).answer())

    assert built() == after
    for value in (1, 2):
        define(header, value)
        assert built() == value


def test_what_changes_whenever_it_is_built_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = define(tmp_path / "value.h", 0)
    source = write(tmp_path / "a.cpp", '#include "value.h"\n' + PLAIN)
    run: Callable[..., Any] = program.run
    values, one_at_a_time = itertools.count(1), threading.Lock()  # compilers run side by side

    def saving(command: list[str], **how: Any) -> Any:
        done = run(command, **how)
        with one_at_a_time:
            define(header, next(values))
        return done

    monkeypatch.setattr(program, "run", saving)
    with pytest.raises(BuildError, match=r"saved: value\.h changes whenever it is built"):
        compile.build(Plan("saved", (source,)))
    assert cache.entries(cache.folder()) == []
