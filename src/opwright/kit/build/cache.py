"""Where built libraries are kept: a folder of the user's own, keyed by content, published by rename."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwright.kit.build import lockfile, program
from opwright.kit.build.foreign import open_way
from opwright.kit.build.trouble import NoCache, Unavailable

LIBRARY = "library.so"
ABOUT = "about.json"
DAY = 86400
MARKED = 3600
"""Seconds for which the mark of an entry's use is good enough."""
HEADERS = "headers"
PARTS = ("entries", "building", "locks", "logs", "sources", HEADERS)


def folder() -> Path:
    """The cache's folder: OPWRIGHT_CACHE_DIR, else `opwright` in the user's cache folder."""
    asked = os.environ.get("OPWRIGHT_CACHE_DIR", "")
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if asked:
            return Path(asked).expanduser().absolute()
        return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "opwright"
    except RuntimeError:  # a container's user may have no name, and so no home
        raise NoCache(
            "there is no home folder to keep libraries in; set OPWRIGHT_CACHE_DIR to a folder of yours"
        ) from None


def open_folder() -> Path:
    """The cache's folder, made if need be and fit to load code from."""
    root = folder()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in PARTS:
            (root / part).mkdir(mode=0o700, exist_ok=True)
    except OSError as e:
        if not os.path.isdir(root / "entries"):
            raise NoCache(
                f"the cache folder {root} cannot be made or read ({e.strerror}); "
                f"set OPWRIGHT_CACHE_DIR to a folder of yours"
            ) from None
    for place in (root, *(root / part for part in PARTS)):
        with contextlib.suppress(FileNotFoundError):  # what a read-only cache may lack
            refuse_shared(place)
    refuse_open_way(root)
    return root


def refuse_open_way(place: Path, *, prebuilt: bool = False) -> None:
    """Raise when somebody else could put another folder in the place of one that libraries are loaded from."""
    found = open_way(place)
    if found is not None:
        what, cure = found
        variable = "OPWRIGHT_PREBUILT" if prebuilt else "OPWRIGHT_CACHE_DIR"
        raise NoCache(f"{what}, so nothing is loaded from {place} below it; {cure}set {variable} to a folder elsewhere")


def refuse_shared(place: Path, *, prebuilt: bool = False, found: os.stat_result | None = None) -> None:
    """Raise when somebody else could have put a library into a folder or file, so that it must not be loaded from.
    Prebuilt ones may come from the machine's administrator."""
    if os.name != "posix":
        return
    found = place.stat() if found is None else found
    folder, variable = ("folder", "OPWRIGHT_PREBUILT") if prebuilt else ("cache folder", "OPWRIGHT_CACHE_DIR")
    what = folder if stat.S_ISDIR(found.st_mode) else "file"
    if found.st_uid != os.getuid() and not (prebuilt and found.st_uid == 0):
        raise NoCache(
            f"the {what} {place} belongs to another user, so nothing is loaded from it; "
            f"set {variable} to a folder of yours"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NoCache(
            f"the {what} {place} can be written by others, so nothing is loaded from it; chmod go-w it, "
            f"or set {variable} to another folder"
        )


def refuse_read_only(root: Path) -> None:
    """Raise when nothing new can be put into the cache."""
    if not os.access(root / "entries", os.W_OK):
        raise NoCache(f"the cache folder {root} cannot be written to; set OPWRIGHT_CACHE_DIR to a folder of yours")


@dataclass(frozen=True)
class Entry:
    """A library in the cache, and what was written down about it."""

    library: Path
    about: dict[str, Any]
    seen: tuple[int, ...] = field(default=(), compare=False)
    """What tells the file that was read from any other that takes its place."""

    @property
    def used(self) -> float:
        """When it was last used, to the hour."""
        return self.library.parent.stat().st_mtime

    @property
    def size(self) -> int:
        """The bytes that it takes; 0 when it has just gone."""
        with contextlib.suppress(OSError):
            return sum(file.stat().st_size for file in self.library.parent.iterdir())
        return 0

    def to_load(self) -> str:
        """The library's path, if the file that was read is still there."""
        try:
            there = identity(self.library.lstat())
        except OSError:
            there = ()
        if there != self.seen:
            raise Changed(f"the library {self.library} was taken away or changed just now; try again")
        return str(self.library)


class Changed(Unavailable):
    """An entry is not there any more as it was looked up: another process has pruned the cache, or built anew."""


def identity(found: os.stat_result) -> tuple[int, ...]:
    """What tells a file from any other that takes its place."""
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def look_up(root: Path, key: str) -> Entry | None:
    """The entry of a key if it is there and whole. A damaged one is taken away."""
    place = root / "entries" / key
    try:
        entry = read(place)
    except Unavailable:
        entry = None
    if entry is None and place.exists():
        _remove(place)
    elif entry is not None:
        _mark(place)
    return entry


def _mark(place: Path) -> None:
    """Note that an entry is used, in its folder's time: the file system's own times of access are often off."""
    with contextlib.suppress(OSError):  # a read-only cache
        if time.time() - place.stat().st_mtime > MARKED:
            os.utime(place)


def read(place: Path, *, prebuilt: bool = False) -> Entry | None:
    """The entry in a folder, if it is whole. Raise when somebody else could have written its files."""
    try:
        about = json.loads(_read(place / ABOUT, prebuilt)[0])
        library, seen = _read(place / LIBRARY, prebuilt)
        whole = hashlib.sha256(library).hexdigest() == about["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Entry(place / LIBRARY, about, seen) if whole else None


def _read(file: Path, prebuilt: bool) -> tuple[bytes, tuple[int, ...]]:
    """A file's content and identity. Whose it is, is asked of what is read: no link, and nothing put in its place."""
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as opened:
        found = os.fstat(descriptor)
        refuse_shared(file, prebuilt=prebuilt, found=found)
        return opened.read(), identity(found)


def _remove(place: Path) -> None:
    """Take an entry out of sight first, so that nobody sees half of it."""
    with contextlib.suppress(OSError):
        aside = Path(tempfile.mkdtemp(prefix="removed.", dir=place.parent.parent / "building"))
        try:
            place.rename(aside / "entry")
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def obtain(root: Path, key: str, name: str, make: Callable[[Path], dict[str, Any]], *, anew: bool = False) -> Entry:
    """The entry of a key; where there is none, `make` builds it in a private folder, once on this machine.

    `make` leaves LIBRARY in the folder it is given and returns what to write down about it, under `beside` the names of
    further files to keep, under `rekeyed` the key that it turned out to have. `anew`: it does so though there is an
    entry, which stays until the new one is whole.
    """
    entry = None if anew else look_up(root, key)
    if entry is not None:
        return entry
    try:
        with _alone(root, key, name) as alone:
            entry = None if anew else look_up(root, key)  # somebody else may have built it meanwhile
            if entry is not None:
                return entry
            return _make(root, key, make, alone, anew)
    except OSError as e:
        raise NoCache(_about_disk(root, e)) from None


@contextlib.contextmanager
def _alone(root: Path, key: str, name: str) -> Iterator[bool]:
    """Hold the lock of a key. False where there are no locks: then several may build at once, and the first to be done
    is taken."""
    file = root / "locks" / key
    while True:
        with lockfile.opened(file) as held:
            try:
                alone = True
                if not lockfile.take(held, wait=False):
                    print(f"opwright: {name} is being built already, waiting for it", file=sys.stderr, flush=True)
                    while not lockfile.take(held, wait=False):  # no signal would reach a thread that waits for it
                        program.refuse_stopped()
                        time.sleep(0.1)
            except lockfile.NoLocks:
                alone = False
            if alone and not lockfile.stands(held, file):
                continue  # it was taken away before we had it, and somebody else may hold another
            yield alone
            return


def _make(root: Path, key: str, make: Callable[[Path], dict[str, Any]], alone: bool, anew: bool) -> Entry:
    private = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=root / "building"))
    try:
        about = make(private)
        place = root / "entries" / about.pop("rekeyed", key)
        library = private / LIBRARY
        about["sha256"] = hashlib.sha256(library.read_bytes()).hexdigest()
        for scratch in private.iterdir():
            if scratch != library and scratch.name not in about.get("beside", ()):
                scratch.unlink()
        (private / ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")
        for file in private.iterdir():
            file.chmod(0o644)  # whatever the umask: what a group can write is not loaded
            _flush(file)
        seen = identity(library.stat())
        first = _publish(root, private, place, anew)
        return Entry(place / LIBRARY, about, seen) if first is None else first
    finally:
        # Who holds the lock knows that whoever made the others is dead. Now and not before: a compiler that lost its
        # parent may have gone on writing. It may do so still, between the look and the removal: hence again.
        for _ in range(3):
            for left in (root / "building").glob(f"{key}.*") if alone else (private,):
                shutil.rmtree(left, ignore_errors=True)


def _publish(root: Path, private: Path, place: Path, anew: bool) -> Entry | None:
    """Give a finished entry its place; or the entry of somebody who built the same and was first."""
    if anew and place.exists():
        _replace(private, place)
        return None
    try:
        private.rename(place)  # the last step: who dies before it leaves no entry, who dies after it no scratch
    except OSError as e:
        if e.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        first = look_up(root, place.name)
        if first is not None:
            return first
        private.rename(place)  # what was there was damaged, and is gone
    return None


def _replace(private: Path, place: Path) -> None:
    """Give a finished entry the place of another."""
    aside = Path(tempfile.mkdtemp(prefix="removed.", dir=private.parent))
    try:
        place.rename(aside / "entry")
        try:
            private.rename(place)
        except BaseException:
            if not place.exists():
                (aside / "entry").rename(place)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _flush(file: Path) -> None:
    """To the disk before its name is: after a power cut a name must not stand for an empty file."""
    with file.open("rb") as f:
        os.fsync(f.fileno())


def _about_disk(root: Path, e: OSError) -> str:
    if e.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk that holds the cache {root} is full; make room, or set OPWRIGHT_CACHE_DIR to another disk"
    if e.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"the cache folder {root} cannot be written; set OPWRIGHT_CACHE_DIR to a folder of yours"
    return f"the cache folder {root} cannot be used ({e}); set OPWRIGHT_CACHE_DIR to another folder"


def entries(root: Path) -> list[Entry]:
    """All entries, the last used first; damaged ones, and those just taken away, are left out."""
    found = []
    for place in (root / "entries").iterdir() if (root / "entries").is_dir() else ():
        with contextlib.suppress(OSError, ValueError):
            entry = Entry(place / LIBRARY, json.loads((place / ABOUT).read_bytes()))
            found.append((entry.used, entry))
    return [entry for _, entry in sorted(found, key=lambda f: f[0], reverse=True)]


def discard(root: Path, key: str) -> None:
    """Take away the entry of a key, if there is one."""
    if (root / "entries" / key).is_dir():
        _remove(root / "entries" / key)


def prune(root: Path, keep: Callable[[Entry], bool]) -> int:
    """Take away what `keep` does not want and what dead builds left; the number of bytes freed."""
    freed = 0
    for entry in entries(root):
        with contextlib.suppress(FileNotFoundError):  # somebody else prunes as well
            if not keep(entry):
                freed += entry.size
                _remove(entry.library.parent)
    for left in (root / "building").iterdir() if (root / "building").is_dir() else ():
        freed += remove_if_dead(root, left)
    return freed


def remove_if_dead(root: Path, left: Path) -> int:
    """Take away what a build has left, unless it is still at work; the number of bytes freed."""
    file = root / "locks" / left.name.partition(".")[0]
    with contextlib.suppress(OSError), lockfile.opened(file) as held:
        try:
            dead = lockfile.take(held, wait=False) and lockfile.stands(held, file)
        except lockfile.NoLocks:
            dead = time.time() - left.stat().st_mtime > DAY
        if dead:
            freed = sum(f.stat().st_size for f in left.rglob("*") if f.is_file())
            shutil.rmtree(left, ignore_errors=True)
            return freed
    return 0
