"""Shared libraries are read as the loader reads them, and files that are none are told."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from opwright.kit.ship import elf
from opwright.kit.ship.elf import BadLibrary, Undefined

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared libraries are ELF files on Linux")

SOURCE = """
#include <string.h>
extern int of_another(int);
extern int perhaps(int) __attribute__((weak));
__attribute__((visibility("hidden"))) int hidden(int x) { return x; }
static int kept(int x) { return hidden(x); }
int shown = 1;
int offered(char *to, const char *from, unsigned long n) {
    memcpy(to, from, n);
    return of_another(kept(0)) + (perhaps ? perhaps(1) : 0);
}
"""


def link(folder: Path, source: str, *flags: str, name: str = "library.so") -> Path:
    (folder / "source.c").write_text(source, encoding="utf-8")
    command = ["gcc", "-shared", "-fPIC", str(folder / "source.c"), "-o", str(folder / name), *flags]
    subprocess.run(command, check=True, timeout=60)
    return folder / name


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = (
        "-Wl,-soname,libmine.so.1",
        "-Wl,--no-as-needed",
        "-lm",
        "-Wl,-rpath,/here:/there",
        "-Wl,-z,noseparate-code",
    )
    return link(tmp_path_factory.mktemp("elf"), SOURCE, *flags)


def test_a_library_says_what_it_needs_and_offers(library: Path) -> None:
    read = elf.read(library)
    assert read.soname == "libmine.so.1"
    assert {"libm.so.6", "libc.so.6"} <= {*read.needed}
    assert read.rpath == ("/here", "/there")
    assert {"offered", "shown"} <= {*read.exported}
    assert not {"hidden", "kept", "of_another", "memcpy"} & {*read.exported}
    assert read.machine == subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()


def test_an_undefined_symbol_has_its_version_and_the_library_that_it_is_asked_of(library: Path) -> None:
    read = elf.read(library)
    (memcpy,) = (each for each in read.undefined if each.name == "memcpy")
    assert memcpy.library == "libc.so.6"
    assert memcpy.version is not None
    assert memcpy.version in read.versions["libc.so.6"]
    assert Undefined("of_another", None, None) in read.undefined


def test_a_symbol_that_may_be_missing_is_told_from_one_that_may_not(library: Path) -> None:
    weak = elf.read(library).weak
    assert "perhaps" in weak
    assert "of_another" not in weak


def test_a_library_reads_as_binutils_reads_it(library: Path) -> None:
    """Of the C++ runtime, which has symbols of every kind."""
    printed = subprocess.run(["gcc", "-print-file-name=libstdc++.so.6"], capture_output=True, text=True, check=True)
    for file in (library, Path(printed.stdout.strip()).resolve()):
        read = elf.read(file)
        listed = subprocess.run(["nm", "-D", str(file)], capture_output=True, text=True, check=True).stdout.splitlines()
        rows = [line.split()[-2:] for line in listed]
        undefined = sorted(name for kind, name in rows if kind in "Uwv" and "@@" not in name)
        told = (each.name + (f"@{each.version}" if each.version else "") for each in read.undefined)
        assert sorted(told) == [u for u in undefined if u.partition("@")[0] not in read.exported]
        assert {name.partition("@")[0] for kind, name in rows if kind in "TDBRVWiu"} == {*read.exported}


def test_a_library_that_was_cut_short_is_refused_at_every_length(library: Path, tmp_path: Path) -> None:
    whole, cut = library.read_bytes(), tmp_path / "cut.so"
    cut.write_bytes(whole)
    with cut.open("r+b") as file:
        for length in range(len(whole) - 1, -1, -1):
            file.truncate(length)
            with pytest.raises(BadLibrary, match=r"cut\.so .*; build it again"):
                elf.read(cut)


def test_a_damaged_library_is_read_or_refused_and_never_a_crash(library: Path, tmp_path: Path) -> None:
    whole, damaged, draw = library.read_bytes(), tmp_path / "damaged.so", random.Random(0)
    refused = 0
    tables = struct.unpack_from("<Q", whole, 40)[0]
    for round_ in range(600):
        content = bytearray(whole)
        for _ in range(4):
            # The header, the tables of sections, or anywhere.
            low, high = ((0, 64), (tables, len(whole)), (0, len(whole)))[round_ % 3]
            content[draw.randrange(low, high)] = draw.choice((0, 1, 0x7F, 0xFF, draw.randrange(256)))
        damaged.write_bytes(content)
        try:
            elf.read(damaged)
        except BadLibrary:
            refused += 1
    assert refused > 60


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "is empty"),
        (b"#!/bin/sh\n", "is no ELF file"),
        (b"\x7fELF", "is cut short"),
        (b"\x7fELF\x01\x01\x01" + bytes(100), "is a 32-bit ELF file"),
        (b"\x7fELF\x02\x02\x01" + bytes(100), "is a big-endian ELF file"),
        (b"\x7fELF\x02\x01\x01" + bytes(100), "no shared library"),
        (random.Random(1).randbytes(5000), "is no ELF file"),
        (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\0\x3e\0" + bytes(44), "no table of sections"),
    ],
)
def test_what_is_no_library_is_told_with_its_name(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "odd.so"
    file.write_bytes(content)
    with pytest.raises(BadLibrary, match=rf"odd\.so .*{said}"):
        elf.read(file)


def test_an_object_is_no_shared_library(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int x;", encoding="utf-8")
    subprocess.run(["gcc", "-c", "a.c", "-o", "a.o"], cwd=tmp_path, check=True, timeout=60)
    with pytest.raises(BadLibrary, match="link it with -shared"):
        elf.read(tmp_path / "a.o")
