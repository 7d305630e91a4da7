"""Locks that survive a fork.

A fork copies locks as they are, and of the threads only the one that forks: a lock that another thread held would stay
taken in the child for ever. So the child gets such locks free.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

T = TypeVar("T")

PATIENCE = 5.0
"""Seconds that a fork waits for what other threads are in the middle of."""

NODE, MAKING, LOADING, REGISTER, INNERMOST = range(5)
"""How deep locks stand that are held at once: who holds one takes deeper ones alone. A fork takes them in order."""

_renewed: WeakSet[Any] = WeakSet()
_settled: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_held: dict[int, list[Any]] = {}
"""What the threads that fork right now hold meanwhile."""


def renewed() -> contextlib.AbstractContextManager[bool]:
    """A re-entrant lock that is free in a forked child; what it guards must bear to be left half done there."""
    lock = threading.RLock()
    _renewed.add(lock)
    return lock


def settled(depth: int = INNERMOST) -> contextlib.AbstractContextManager[bool]:
    """A re-entrant lock that a fork waits for: no child sees what it guards half done. Not for what takes long. Inside
    an innermost one no other is taken."""
    lock = threading.RLock()
    _renewed.add(lock)
    _settled[lock] = depth
    return lock


loading = settled(LOADING)
"""Held while a library is loaded or kernels are registered: a child must not meet half of them."""


def in_child(function: Callable[[], object]) -> None:
    """Call the function in every forked child."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


class unlocked_property(cached_property[T]):
    """A cached property that is computed without a lock. Before Python 3.12 all instances share one, which a fork
    copies locked."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        self.lock = contextlib.nullcontext()


def _before() -> None:
    held = _held.setdefault(threading.get_ident(), [])
    for lock, _ in sorted(_settled.items(), key=lambda item: item[1]):
        if lock.acquire(timeout=PATIENCE):  # who cannot have it forks all the same: a hang would be worse
            held.append(lock)


def _after() -> None:
    for lock in _held.pop(threading.get_ident(), []):
        lock.release()


def _after_in_child() -> None:
    _after()
    _held.clear()
    for lock in list(_renewed):
        if not lock._is_owned():  # the thread that forked releases what it holds
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
