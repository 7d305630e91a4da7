"""Python's side of the guarding allocator, and of the check mode of kernel.h's parallel loop."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from opwright.kit.build import cache, compile, own
from opwright.kit.build.library import forbidden, libraries
from opwright.kit.build.trouble import BuildError, Unavailable

ROOM = 64


@lru_cache
def library() -> ctypes.CDLL | str:
    """The guard, built if need be; or why there is none."""
    try:
        entry = cache.look_up(cache.open_folder(), own.guard().key) if forbidden() else compile.build(own.guard())
        if entry is None:
            return "its guard is not built and OPWRIGHT_BUILD=0 forbids building"
        loaded = ctypes.CDLL(entry.to_load())
    except (Unavailable, BuildError, OSError) as e:
        return f"its guard cannot be built here: {str(e).splitlines()[0]}"
    pair = [ctypes.POINTER(ctypes.c_int64), ctypes.c_int64]
    loaded.opwright_guard_start.argtypes = [ctypes.c_uint8, ctypes.c_uint8]
    for name in ("opwright_guard_outside", "opwright_guard_twice"):
        function = getattr(loaded, name)
        function.argtypes, function.restype = pair, ctypes.c_int64
    loaded.opwright_guard_live.restype = ctypes.c_int64
    return loaded


def unavailable() -> str | None:
    """None when there is a guard, else why not."""
    found = library()
    return found if isinstance(found, str) else None


@dataclass(frozen=True)
class Place:
    """A byte of a tensor's memory, or near it: the tensor's address and size, and the byte's offset."""

    address: int
    size: int
    offset: int


class Guard:
    """The guard at work."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        self._library = loaded

    def outside(self) -> list[Place]:
        """Where somebody wrote outside of a tensor since it was last asked."""
        return self._places(self._library.opwright_guard_outside)

    def twice(self) -> list[Place]:
        """Where two chunks of one parallel loop wrote since it was last asked."""
        return self._places(self._library.opwright_guard_twice)

    @property
    def live(self) -> int:
        """Bytes of the tensors that were made under guard and are still there."""
        return int(self._library.opwright_guard_live())

    def _places(self, function: ctypes._NamedFuncPointer) -> list[Place]:
        room = (ctypes.c_int64 * (3 * ROOM))()
        count = int(function(room, ROOM))
        return [Place(*room[3 * i : 3 * i + 3]) for i in range(count)]


@contextlib.contextmanager
def guarded(inside: int = 0xFF, around: int = 0xFF) -> Iterator[Guard]:
    """New tensors on the CPU are filled with the byte `inside` and lie between bytes `around`."""
    loaded = library()
    assert not isinstance(loaded, str)
    loaded.opwright_guard_start(inside, around)
    try:
        yield Guard(loaded)
    finally:
        loaded.opwright_guard_stop()


CROWD = 1 << 63
"""Added to a seed: chunks run in small pieces on all threads at once, instead of singly."""


@contextlib.contextmanager
def check_mode(seed: int, watch: bool = False) -> Iterator[None]:
    """kernel.h's parallel loops run their chunks in an order and in sizes drawn from a seed."""
    handles = [ctypes.CDLL(str(path)) for path in loaded_kernels()]
    seeds = [ctypes.c_uint64.in_dll(h, "opwright_check_seed") for h in handles if hasattr(h, "opwright_check_seed")]
    hooks = [ctypes.c_void_p.in_dll(h, "opwright_check_between") for h in handles if hasattr(h, "opwright_check_seed")]
    found = library()
    address = None
    if watch and not isinstance(found, str):
        address = ctypes.cast(found.opwright_guard_between, ctypes.c_void_p).value
    try:
        for s, hook in zip(seeds, hooks, strict=True):
            s.value, hook.value = seed, address
        yield
    finally:
        for s, hook in zip(seeds, hooks, strict=True):
            s.value, hook.value = 0, None


def loaded_kernels() -> list[Path]:
    """The libraries of kernels that this process has loaded."""
    try:
        root = cache.open_folder()
    except Unavailable:
        return []
    found = []
    for each in libraries():
        if each.key is not None:
            entry = cache.look_up(root, each.plan().key)
            if entry is not None:
                found.append(entry.library)
    return found
