"""Whose code it is: nothing is run that somebody else could have written."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

LOADED = "_opwright_loaded"
"""The package that holds the files which ow.load has read."""

PACKAGES: dict[str, Path] = {}
"""The packages whose files ow.load has read, and the folders that hold them."""

MOST_LINKS = 40
"""What Linux follows on the way to one file."""


def is_loaded(module: str) -> bool:
    """Whether a module came from anywhere on disk through ow.load, rather than from where Python imports."""
    top = module.partition(".")[0]
    return top == LOADED or top in PACKAGES


def refuse_foreign(place: Path) -> None:
    """Raise PermissionError when somebody else could have put code into a file or folder, or another in its place."""
    if os.name != "posix":
        return
    refuse_found(place, place.stat())
    found = open_way(place)
    if found is not None:
        what, cure = found
        raise PermissionError(f"{what}, so code below it is not loaded; {cure}copy {place} elsewhere")


def open_way(place: Path) -> tuple[str, str] | None:
    """Where on the way to a place somebody else could put another in its place, and how to fix it; None: nowhere.

    A folder's owner can, and whoever may write to it, unless it is sticky, as /tmp is: there only the owner of what
    lies in it can. Whoever owns the root of all folders need not be asked: in a container that may be a user who has no
    number there.
    """
    if os.name != "posix":
        return None
    trusted = (*_trusted(), os.stat("/").st_uid)
    for folder, name in _way(place):
        found = folder.stat()
        if found.st_uid not in trusted:
            return f"the folder {folder} belongs to another user", ""
        if not _open(found):
            continue
        if not found.st_mode & stat.S_ISVTX:
            return f"the folder {folder} can be written by everybody", "chmod o-w it, or "
        if (folder / name).is_symlink() and (folder / name).lstat().st_uid not in trusted:
            return f"the link {folder / name} belongs to another user", "name what it leads to, or "
    return None


def refuse_found(place: Path, found: os.stat_result) -> None:
    """Raise PermissionError when a file or folder, as it was found, is open to somebody else."""
    if os.name != "posix":
        return
    if _open(found) and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        raise PermissionError(f"{place} can be written by everybody, so its code is not loaded; chmod o-w it first")
    if found.st_uid not in _trusted():
        raise PermissionError(f"{place} belongs to another user, so its code is not loaded; copy it first")


def _trusted() -> tuple[int, ...]:
    return (os.getuid(), 0)


def _open(found: os.stat_result) -> bool:
    return bool(found.st_mode & stat.S_IWOTH)


def _way(place: Path) -> Iterator[tuple[Path, str]]:
    """Each folder that the system goes through to reach a place, links followed, and what it looks for there."""
    at, links = Path("/"), 0
    parts = list(reversed(place.absolute().parts[1:]))
    while parts:
        name = parts.pop()
        if name == "..":
            at = at.parent
            continue
        yield at, name
        if (at / name).is_symlink() and links < MOST_LINKS:
            links += 1
            target = Path(os.readlink(at / name))
            at = Path("/") if target.is_absolute() else at
            parts += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        else:
            at = at / name
