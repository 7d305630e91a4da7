"""Whose code it is: nothing is run that somebody else could have written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

LOADED = "_opwright_loaded"
"""The package that holds the files which ow.load has read."""


def refuse_foreign(place: Path) -> None:
    """Raise PermissionError when somebody else could have put code into this file or folder."""
    if os.name != "posix":
        return
    found = place.stat()
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise PermissionError(f"{place} can be written by everybody, so its code is not loaded; chmod o-w it first")
    if found.st_uid not in (os.getuid(), 0):
        raise PermissionError(f"{place} belongs to another user, so its code is not loaded; copy it first")
