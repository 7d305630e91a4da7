"""The C functions of PyTorch that a library may call: its stable ABI, with the release that first had each.

The table is symbols.json, which `python -m tests.kit.ship.symbols` makes from releases of PyTorch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

Release = tuple[int, int]

TABLE = Path(__file__).parent / "symbols.json"


@dataclass(frozen=True)
class Symbol:
    """A C function of PyTorch."""

    library: str
    """Which of PyTorch's libraries has it: libtorch_cpu, or libtorch_cuda, which a CPU-only torch lacks."""
    since: Release
    gone: Release | None
    """The first release without it again."""


@lru_cache
def symbols() -> dict[str, Symbol]:
    """All of them, by name."""
    table = _table()
    gone = {name: release_of(text) for text, names in table["gone"].items() for name in names}
    return {
        name: Symbol(library, release_of(text), gone.get(name))
        for library, releases in table["symbols"].items()
        for text, names in releases.items()
        for name in names
    }


def looked_at() -> tuple[str, ...]:
    """The releases that the table was made from, oldest first."""
    return tuple(_table()["torch"])


@lru_cache
def _table() -> dict[str, Any]:
    return json.loads(TABLE.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def release_of(version: str) -> Release:
    """
    >>> release_of("2.10.0+cpu"), release_of("2.9")
    ((2, 10), (2, 9))
    """
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
