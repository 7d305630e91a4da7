"""Which Linux systems a library runs on: the manylinux platforms of PEP 600 and what each of them has at least.

The figures are those that auditwheel judges wheels by, so that a tag means the same here and there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from opwright.kit.ship.elf import Elf
from opwright.kit.ship.names import readable

Version = tuple[int, ...]

FAMILIES = ("GLIBC", "GLIBCXX", "CXXABI", "GCC")

# glibc: the newest versions of libstdc++ (GLIBCXX, CXXABI) and of libgcc (GCC) on every system of that age.
_X86_64 = """
2.17  3.4.19  1.3.7   4.8.0
2.24  3.4.22  1.3.10  4.8.0
2.26  3.4.22  1.3.10  4.8.0
2.27  3.4.24  1.3.11  7.0.0
2.28  3.4.24  1.3.11  7.0.0
2.31  3.4.28  1.3.12  7.0.0
2.34  3.4.29  1.3.13  7.0.0
2.35  3.4.30  1.3.13  12.0.0
2.36  3.4.30  1.3.13  12.0.0
2.37  3.4.30  1.3.13  12.0.0
2.38  3.4.30  1.3.13  12.0.0
2.39  3.4.33  1.3.15  14.0.0
2.40  3.4.33  1.3.15  14.0.0
2.41  3.4.33  1.3.15  14.0.0
"""
_AARCH64 = """
2.17  3.4.19  1.3.7   4.7.0
2.24  3.4.22  1.3.10  4.7.0
2.26  3.4.24  1.3.11  7.0.0
2.27  3.4.24  1.3.11  7.0.0
2.28  3.4.24  1.3.11  7.0.0
2.31  3.4.28  1.3.12  7.0.0
2.34  3.4.29  1.3.13  11.0
2.35  3.4.30  1.3.13  11.0
2.36  3.4.30  1.3.13  11.0
2.37  3.4.30  1.3.13  11.0
2.38  3.4.30  1.3.13  11.0
2.39  3.4.33  1.3.15  14.0.0
2.40  3.4.33  1.3.15  14.0.0
2.41  3.4.33  1.3.15  14.0.0
"""
WORDS = {"CXXABI_TM_1": (2, 17), "CXXABI_FLOAT128": (2, 24), "GLIBC_ABI_DT_RELR": (2, 36)}
"""Versions that are words, and the oldest platform that has them."""


def number(version: str) -> Version:
    """
    >>> number("3.4.29") < number("3.4.30"), number("7.0") == number("7.0.0")
    (True, True)
    """
    parts = [int(part) for part in version.split(".")]
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return tuple(parts)


def _rows(table: str) -> dict[Version, dict[str, Version]]:
    lines = (line.split() for line in table.split("\n") if line)
    return {number(row[0]): dict(zip(FAMILIES, map(number, row), strict=True)) for row in lines}


PLATFORMS = {"x86_64": _rows(_X86_64), "aarch64": _rows(_AARCH64)}
"""For each machine: the platforms, oldest first, by their glibc, with the newest version of each family they have."""


@dataclass(frozen=True)
class Platform:
    """The oldest platform that has all a library asks for."""

    tag: str
    glibc: Version | None
    """None where no platform has it all."""
    because: tuple[str, ...]
    """What an older one lacks: a symbol or two for each version, as `pthread_create@GLIBC_2.34`."""


def platform_of(library: Elf) -> Platform:
    """The oldest platform that a library runs on."""
    wanted = {version: _oldest(library.machine, version) for version in _versions(library)}
    nowhere = [version for version, glibc in wanted.items() if glibc is None]
    if library.machine not in PLATFORMS:
        return Platform(f"linux_{library.machine}", None, ())
    if nowhere:
        return Platform(f"linux_{library.machine}", None, tuple(_examples(library, nowhere)))
    oldest = next(iter(PLATFORMS[library.machine]))
    glibc = max((found for found in wanted.values() if found is not None), default=oldest)
    # The oldest there is needs no excuse.
    setting = [version for version, found in wanted.items() if found == glibc and glibc > oldest]
    tag = f"manylinux_{glibc[0]}_{glibc[1]}_{library.machine}"
    return Platform(tag, glibc, tuple(_examples(library, setting)))


def _versions(library: Elf) -> list[str]:
    """The versions that it asks of the system's libraries."""
    found = {version for versions in library.versions.values() for version in versions}
    return sorted(version for version in found if version.partition("_")[0] in FAMILIES)


def _oldest(machine: str, version: str) -> Version | None:
    """The glibc of the oldest platform that has a version; None where none has."""
    if version in WORDS:
        return WORDS[version]
    family, _, text = version.partition("_")
    if not re.fullmatch(r"\d+(\.\d+)+", text):
        return None  # GLIBC_PRIVATE
    wanted = number(text)
    for glibc, newest in PLATFORMS.get(machine, {}).items():
        if wanted <= newest[family]:
            return glibc
    # A platform is named by its glibc, so that one newer than the table has its name already.
    return wanted[:2] if family == "GLIBC" else None


def _examples(library: Elf, versions: Iterable[str]) -> Iterator[str]:
    """A symbol or two for each version."""
    for version in versions:
        users = [each.name for each in library.undefined if each.version == version]
        # The linker asks for some versions itself, without a symbol.
        yield from (f"{readable(name)}@{version}" for name in users[:2]) if users else [version]
