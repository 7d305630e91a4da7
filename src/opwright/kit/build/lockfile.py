"""A lock between processes: a file that the operating system locks until its holder closes it, or dies, however it
dies."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from opwright.kit import locks


class NoLocks(OSError):
    """The file system has no locks, as some that come over a network."""


_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}

_open: set[int] = set()
"""The descriptors that are open now. A forked child has them too, and would keep the parent's locks taken."""
_opening = locks.settled()


@contextlib.contextmanager
def opened(file: Path) -> Iterator[int]:
    """The descriptor of a lock's file, made if need be; programs that are started meanwhile do not inherit it."""
    with _opening:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        _open.add(descriptor)
    try:
        yield descriptor
    finally:
        with _opening:
            if descriptor in _open:  # it is not in a child of whoever opened it
                _open.discard(descriptor)
                os.close(descriptor)


def take(descriptor: int, *, wait: bool) -> bool:
    """Lock a file until it is closed; False when somebody else holds it and we do not wait."""
    if sys.platform == "win32":
        while not _take_on_windows(descriptor):
            if not wait:
                return False
            time.sleep(0.1)
        return True
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as e:
        if e.errno in _UNSUPPORTED:
            raise NoLocks(e.errno, e.strerror) from None
        raise
    return True


def _take_on_windows(descriptor: int) -> bool:
    import msvcrt

    with contextlib.suppress(PermissionError):  # somebody holds it
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        return True
    return False


def stands(descriptor: int, file: Path) -> bool:
    """Whether a lock that was taken is the one that others find by its name: an idle one may have been removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except OSError:
        return False


def remove_idle(file: Path) -> None:
    """Remove a lock that nobody holds. Who opened it and takes it later sees that it does not stand any more."""
    with contextlib.suppress(OSError), opened(file) as descriptor:
        if take(descriptor, wait=False) and stands(descriptor, file):
            file.unlink()


def _close_in_child() -> None:
    for descriptor in _open:
        with contextlib.suppress(OSError):
            os.close(descriptor)  # which leaves the lock to the parent; to unlock it would not
    _open.clear()


locks.in_child(_close_in_child)
