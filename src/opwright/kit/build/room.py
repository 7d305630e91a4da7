"""How much the cache may hold: after a build, what was not used for longest makes room for the rest."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from opwright.kit.build import cache, lockfile

USUAL = 2 << 30
_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}

FRESH = 2 * cache.MARKED
"""Seconds for which an entry that was used stays, whatever the limit: another process may be about to load it, or to
link with it."""
LOGS = 30 * cache.DAY
"""Seconds for which the log of a build that failed is kept, a lock, and a source string that nobody used."""


def limit() -> int | None:
    """The bytes that the cache may hold: OPWRIGHT_CACHE_SIZE, else 2 GiB. None: there is no limit."""
    asked = os.environ.get("OPWRIGHT_CACHE_SIZE", "").strip()
    if not asked:
        return USUAL
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:I?B)?", asked.upper())
    if found is None:
        raise ValueError(f"OPWRIGHT_CACHE_SIZE must be a size such as 500M or 2G, or 0 for no limit, got {asked!r}")
    return int(float(found[1]) * (1 << _SHIFTS[found[2]])) or None


def say(size: float) -> str:
    """A number of bytes as `limit` would read it.

    >>> say(2 << 30), say(1.5e6), say(0)
    ('2.0 GiB', '1.4 MiB', '0.0 MiB')
    """
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.1f} MiB"


def usage(entries: list[cache.Entry]) -> str:
    """What entries take, and may take."""
    most = limit()
    taken = say(sum(entry.size for entry in entries))
    return f"{taken} of at most {say(most)}" if most is not None else f"{taken}, without a limit"


def make_room(root: Path, keep: Callable[[], set[str]]) -> int:
    """Take away what was not used for longest until the rest is within the limit; the number of bytes freed. Keys that
    `keep` gives, which is asked only when there is something to do, stay, and so does what was used just now.

    A process that has loaded a library keeps it: the system frees the file when the last one is done with it.
    """
    _sweep(root)
    most = limit()
    found = [(used, size, place) for place in _places(root) for used, size in _measure(place)]
    over = sum(size for _, size, _ in found) - (most or 0)
    if most is None or over <= 0:
        return 0
    stays, freed = keep(), 0
    for used, size, place in sorted(found):
        if freed >= over or time.time() - used < FRESH:
            break
        if place.name not in stays:
            cache.discard(root, place.name)
            freed += size
    return freed


def _places(root: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list((root / "entries").iterdir())
    return []


def _measure(place: Path) -> list[tuple[float, int]]:
    """When an entry was last used and what it takes; nothing when it has just gone."""
    with contextlib.suppress(OSError):
        return [(place.stat().st_mtime, sum(file.stat().st_size for file in place.iterdir()))]
    return []


def _sweep(root: Path) -> None:
    """Take away old logs, locks and source strings, and what builds left that died long ago."""
    for part in ("logs", "building", "locks", "sources", cache.HEADERS):
        age = cache.DAY if part == "building" else LOGS
        with contextlib.suppress(OSError):
            for left in (root / part).iterdir():
                if time.time() - left.stat().st_mtime > age:
                    if part in ("logs", cache.HEADERS):
                        left.unlink(missing_ok=True)
                    elif part == "locks":
                        lockfile.remove_idle(left)
                    elif part == "sources":
                        shutil.rmtree(left, ignore_errors=True)
                    else:
                        cache.remove_if_dead(root, left)
