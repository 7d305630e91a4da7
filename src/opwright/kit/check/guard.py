"""The guards of memory, on the CPU and on a GPU, and the check mode of kernel.h's parallel loop."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import torch

from opwright.kit.build import compile, own
from opwright.kit.build.library import forbidden, libraries
from opwright.kit.build.trouble import BuildError, Refused, Unavailable

MOST = 64
"""Writes of one call that are reported."""


class NoGuard(Exception):
    """Memory cannot be guarded here, and why."""


@dataclass(frozen=True)
class BadWrite:
    """A byte of a tensor's memory, or near it: the tensor's address and size, and the byte's offset."""

    address: int
    size: int
    offset: int


class Guard:
    """An allocator of ours: new tensors begin as known bytes and lie between bands of known bytes."""

    device = ""

    def __init__(self) -> None:
        self.path = _built(self.device)
        try:
            self.library = ctypes.CDLL(self.path)
        except OSError as e:
            raise _unfit(e) from None
        self.library.opwright_guard_start.argtypes = [ctypes.c_uint8, ctypes.c_uint8]

    @contextlib.contextmanager
    def filling(self, inside: int, around: int) -> Iterator[None]:
        """New tensors are filled with the byte `inside` and lie between bytes `around`; what was found is forgotten."""
        self.library.opwright_guard_start(inside, around)
        try:
            yield
        finally:
            self._stop()

    def _stop(self) -> None:
        """Let PyTorch's own allocator serve again."""
        raise NotImplementedError

    def outside(self) -> list[BadWrite]:
        """Where somebody wrote outside of a tensor since it was last asked."""
        return self._writes("opwright_guard_outside")

    def _writes(self, name: str) -> list[BadWrite]:
        function = getattr(self.library, name)
        function.argtypes, function.restype = [ctypes.POINTER(ctypes.c_int64), ctypes.c_int64], ctypes.c_int64
        room = (ctypes.c_int64 * (3 * MOST))()
        count = int(function(room, MOST))
        return [BadWrite(*room[3 * i : 3 * i + 3]) for i in range(count)]


def _built(device: str) -> str:
    """The file of a device's guard, built if need be. NoGuard: it cannot be."""
    try:
        plan = partial(own.guard, device)
        entry = own.built(plan().name, plan) or (None if forbidden() else compile.build(plan()))
        if entry is None:
            raise NoGuard("its guard is not built and OPWRIGHT_BUILD=0 forbids building")
        return entry.to_load()
    except (Unavailable, Refused, BuildError, OSError) as e:
        raise _unfit(e) from None


def _unfit(e: Exception) -> NoGuard:
    return NoGuard(f"its guard cannot be built here: {str(e).splitlines()[0]}")


class CpuGuard(Guard):
    """On the CPU, where it also counts what is alive, and follows the chunks of kernel.h's parallel loops."""

    device = "cpu"

    def __init__(self) -> None:
        super().__init__()
        self.library.opwright_guard_live.restype = ctypes.c_int64

    def _stop(self) -> None:
        self.library.opwright_guard_stop()

    def twice(self) -> list[BadWrite]:
        """Where two chunks of one parallel loop wrote since it was last asked."""
        return self._writes("opwright_guard_twice")

    @property
    def live(self) -> int:
        """Bytes of the tensors that were made under guard and are still there."""
        return int(self.library.opwright_guard_live())


class CudaGuard(Guard):
    """On a GPU, for good: PyTorch takes another allocator only before it has allocated anything."""

    device = "cuda"

    def __init__(self) -> None:
        super().__init__()
        try:
            found = torch.cuda.memory.CUDAPluggableAllocator(self.path, "opwright_cuda_alloc", "opwright_cuda_free")
            torch.cuda.memory.change_current_allocator(found)
        except RuntimeError:
            raise NoGuard("memory was allocated already, and it needs a process of its own") from None

    def _stop(self) -> None:
        pass

    def limit(self, size: int) -> None:
        """No more than so many bytes at a time from now on."""
        self.library.opwright_guard_limit(ctypes.c_uint64(size))

    def outside(self) -> list[BadWrite]:
        torch.cuda.synchronize()
        return super().outside()


@lru_cache
def on_cpu() -> CpuGuard | str:
    """The guard of the CPU's memory, built if need be; or why there is none."""
    try:
        return CpuGuard()
    except NoGuard as e:
        return str(e)


@lru_cache
def on_cuda() -> CudaGuard | str:
    """The guard of the GPU's memory, at work from now on; or why there is none."""
    try:
        return CudaGuard()
    except NoGuard as e:
        return str(e)


def missing(device: str) -> str | None:
    """Why there is no guard of a kind of device, once it was built if need be; None where there is one. Nothing is at
    work yet: that of a GPU would be for good."""
    try:
        _built(device)
    except NoGuard as e:
        return str(e)
    return None


def unavailable() -> str | None:
    """None when there is a guard of the CPU's memory, else why not."""
    found = on_cpu()
    return found if isinstance(found, str) else None


@contextlib.contextmanager
def guarded(inside: int = 0xFF, around: int = 0xFF) -> Iterator[CpuGuard]:
    """New tensors on the CPU are filled with the byte `inside` and lie between bytes `around`."""
    found = on_cpu()
    assert not isinstance(found, str)
    with found.filling(inside, around):
        yield found


CROWD = 1 << 63
"""Added to a seed: chunks run in small pieces on all threads at once, instead of singly."""


@contextlib.contextmanager
def check_mode(seed: int, watch: bool = False) -> Iterator[None]:
    """kernel.h's parallel loops run their chunks in an order and in sizes drawn from a seed."""
    handles = [ctypes.CDLL(str(path)) for path in loaded_kernels()]
    seeds = [ctypes.c_uint64.in_dll(h, "opwright_check_seed") for h in handles if hasattr(h, "opwright_check_seed")]
    hooks = [ctypes.c_void_p.in_dll(h, "opwright_check_between") for h in handles if hasattr(h, "opwright_check_seed")]
    found = on_cpu()
    address = None
    if watch and not isinstance(found, str):
        address = ctypes.cast(found.library.opwright_guard_between, ctypes.c_void_p).value
    try:
        for s, hook in zip(seeds, hooks, strict=True):
            s.value, hook.value = seed, address
        yield
    finally:
        for s, hook in zip(seeds, hooks, strict=True):
            s.value, hook.value = 0, None


def loaded_kernels() -> list[Path]:
    """The libraries of kernels that this process has loaded."""
    return [library.loaded for library in libraries() if library.loaded is not None]
