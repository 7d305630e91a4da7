"""What a shared library says of itself: what it needs, what it calls and what it offers.

Read from the file's section table, since that is the same for every linker and lies at the end: of a file that was cut
short, nothing is believed. Only what torch runs on is read, 64-bit and little-endian.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MACHINES = {3: "i686", 21: "ppc64le", 22: "s390x", 40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64"}

SHARED_LIBRARY = 3
DYNAMIC, SYMBOLS, NEEDED_VERSIONS, SYMBOL_VERSIONS = 6, 11, 0x6FFFFFFE, 0x6FFFFFFF
"""Kinds of sections."""
ABSOLUTE = 0xFFF1
"""The section of symbols that are no place in memory: the names of versions."""
NEEDED, SONAME, RPATH, RUNPATH = 1, 14, 15, 29
"""Entries of the dynamic section that are text."""


class BadLibrary(ValueError):
    """A file is no shared library, or not all of one."""


class Undefined(NamedTuple):
    """A symbol that something else must bring, with its version and the library that the version is asked of."""

    name: str
    version: str | None
    library: str | None


@dataclass(frozen=True)
class Elf:
    """A shared library, as the loader sees it."""

    machine: str
    needed: tuple[str, ...]
    """The libraries that are loaded with it."""
    soname: str | None
    rpath: tuple[str, ...]
    """Folders that it wants to be searched, by DT_RPATH or DT_RUNPATH."""
    undefined: tuple[Undefined, ...]
    weak: frozenset[str]
    """Those of the undefined ones that may be missing."""
    exported: tuple[str, ...]
    versions: dict[str, frozenset[str]]
    """The versions that each library must have."""


def read(file: Path) -> Elf:
    """Read a shared library; BadLibrary where it is none."""
    with file.open("rb") as opened:
        if opened.seek(0, 2) == 0:
            raise BadLibrary(f"{file} is empty; build it again")
        # Not read as a whole: PyTorch's largest has hundreds of megabytes, and its symbols lie in a few of them.
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(file, data).read()


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class _Reader:
    """A file under reading: every look into it is checked against its end."""

    def __init__(self, file: Path, data: mmap.mmap) -> None:
        self.file, self.data = file, data

    def bad(self, what: str) -> BadLibrary:
        return BadLibrary(f"{self.file} {what}; build it again")

    def unpack(self, layout: str, at: int) -> tuple[int, ...]:
        if at + struct.calcsize(layout) > len(self.data):
            raise self.bad(f"is cut short or damaged: it ends at {len(self.data)} and points to {at}")
        return struct.unpack_from(layout, self.data, at)

    def read(self) -> Elf:
        machine = self.header()
        sections = self.sections()
        symbols = self.one(sections, SYMBOLS)
        dynamic = self.one(sections, DYNAMIC)
        if symbols is None or dynamic is None:
            raise self.bad("has no dynamic symbols, as a shared library does")
        texts = self.dynamic(sections, dynamic)
        versions, by_index = self.versions(sections)
        undefined, weak, exported = self.symbols(sections, symbols, by_index)
        return Elf(
            machine=machine,
            needed=tuple(texts[NEEDED]),
            soname=next(iter(texts[SONAME]), None),
            rpath=tuple(folder for kind in (RPATH, RUNPATH) for text in texts[kind] for folder in text.split(":")),
            undefined=tuple(undefined),
            weak=frozenset(weak),
            exported=tuple(exported),
            versions={library: frozenset(found) for library, found in versions.items()},
        )

    def header(self) -> str:
        if self.data[:4] != b"\x7fELF":
            raise self.bad("is no ELF file")
        width, order = self.unpack("<BB", 4)
        if (width, order) != (2, 1):
            what = "a 32-bit" if width == 1 else "a big-endian" if order == 2 else "an unknown kind of"
            raise BadLibrary(f"{self.file} is {what} ELF file; PyTorch runs on 64-bit little-endian machines alone")
        kind, machine = self.unpack("<HH", 16)
        if kind != SHARED_LIBRARY:
            raise BadLibrary(f"{self.file} is an ELF file but no shared library; link it with -shared")
        return MACHINES.get(machine, f"machine{machine}")

    def sections(self) -> list[_Section]:
        (start,) = self.unpack("<Q", 40)
        size, count = self.unpack("<HH", 58)
        if not start or not count or size != 64:
            raise self.bad("has no table of sections")
        self.unpack(f"{size * count}x", start)
        found = [_Section(*self.unpack("<IIQQQQIIQQ", start + size * i)) for i in range(count)]
        for section in found:
            if section.kind != 8 and section.offset + section.size > len(self.data):  # 8 has no content in the file
                raise self.bad("is cut short or damaged: a section goes beyond its end")
        return found

    @staticmethod
    def one(sections: list[_Section], kind: int) -> _Section | None:
        return next((s for s in sections if s.kind == kind), None)

    def strings(self, sections: list[_Section], of: _Section) -> bytes:
        """The names that a section's numbers point into."""
        if of.link >= len(sections):
            raise self.bad("is damaged: a section has no names")
        names = sections[of.link]
        return self.data[names.offset : names.offset + names.size]

    def text(self, names: bytes, at: int) -> str:
        end = names.find(b"\0", at)
        if at >= len(names) or end < 0:
            raise self.bad("is damaged: a name lies outside the table of names")
        return names[at:end].decode(errors="replace")

    def dynamic(self, sections: list[_Section], dynamic: _Section) -> dict[int, list[str]]:
        names = self.strings(sections, dynamic)
        found: dict[int, list[str]] = {kind: [] for kind in (NEEDED, SONAME, RPATH, RUNPATH)}
        for at in range(dynamic.offset, dynamic.offset + dynamic.size - 15, 16):
            kind, value = self.unpack("<qQ", at)
            if kind == 0:
                break
            if kind in found:
                found[kind].append(self.text(names, value))
        return found

    def versions(self, sections: list[_Section]) -> tuple[dict[str, set[str]], dict[int, tuple[str, str]]]:
        """The versions that libraries must have, and the version and library behind each symbol's number."""
        table = self.one(sections, NEEDED_VERSIONS)
        needed: dict[str, set[str]] = {}
        by_index: dict[int, tuple[str, str]] = {}
        if table is None:
            return needed, by_index
        names, at = self.strings(sections, table), table.offset
        while True:
            _, count, file, first, following = self.unpack("<HHIII", at)
            library = self.text(names, file)
            of_library = needed.setdefault(library, set())
            inner = at + first
            for _ in range(count):
                _, _, index, name, step = self.unpack("<IHHII", inner)
                version = self.text(names, name)
                of_library.add(version)
                by_index[index & 0x7FFF] = version, library
                if step < 16:  # the last has 0, and less than its own size would never end
                    break
                inner += step
            if following < 16:
                return needed, by_index
            at += following

    def symbols(
        self, sections: list[_Section], table: _Section, versions: dict[int, tuple[str, str]]
    ) -> tuple[list[Undefined], list[str], list[str]]:
        names = self.strings(sections, table)
        numbers = self.one(sections, SYMBOL_VERSIONS)
        undefined, weak, exported = [], [], []
        for i in range(1, table.size // 24):  # the first is empty
            name_at, info, _, section = self.unpack("<IBBH", table.offset + 24 * i)
            if not name_at:
                continue  # a section's own
            name, binding = self.text(names, name_at), info >> 4
            if section:
                if binding and section != ABSOLUTE:  # 0 is local
                    exported.append(name)
                continue
            number = self.unpack("<H", numbers.offset + 2 * i)[0] & 0x7FFF if numbers is not None else 0
            undefined.append(Undefined(name, *versions.get(number, (None, None))))
            if binding == 2:
                weak.append(name)
        return undefined, weak, exported
