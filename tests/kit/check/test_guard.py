"""The guard's two back ends. That of a GPU is built here against functions of CUDA's that serve memory of the CPU."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from opwright.kit.build import compile, own
from opwright.kit.build.plan import Plan
from opwright.kit.check import guard
from opwright.kit.check.properties import sanitizer
from opwright.kit.spec.options import Options

STAND_IN = """
#include <cstdlib>
#include <cstring>
using cudaStream_t = void*;
enum { cudaSuccess, cudaMemcpyDeviceToHost };
inline int cudaMalloc(void** p, size_t n) { return (*p = std::malloc(n)) ? cudaSuccess : 1; }
inline int cudaFree(void* p) { std::free(p); return cudaSuccess; }
inline int cudaMemset(void* p, int byte, size_t n) { std::memset(p, byte, n); return cudaSuccess; }
inline int cudaMemcpy(void* to, const void* from, size_t n, int) { std::memcpy(to, from, n); return cudaSuccess; }
inline int cudaSetDevice(int) { return cudaSuccess; }
inline int cudaDeviceSynchronize() { return cudaSuccess; }
inline int cudaGetLastError() { return cudaSuccess; }
"""


class StandIn(guard.CudaGuard):
    """The back end of a GPU without one."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)


def test_what_runs_on_a_gpu_is_where_it_is_looked_for() -> None:
    assert all(source.is_file() for device in ("cpu", "cuda") for source in own.guard(device).sources)
    assert find_spec(sanitizer.WATCHED) is not None


def test_the_guard_of_a_gpu_sees_writes_on_either_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cuda_runtime_api.h").write_text(STAND_IN)
    plan = Plan("check_cuda", own.guard("cuda").sources, Options(include=(str(tmp_path),)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    watching = StandIn(compile.build(plan).to_load())
    take, give = watching.library.opwright_cuda_alloc, watching.library.opwright_cuda_free
    take.argtypes, take.restype = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    give.argtypes, give.restype = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p], None
    with watching.filling(0x5A, 0x11):
        at = take(16, 0, None)
        assert ctypes.string_at(at, 16) == b"\x5a" * 16
        assert watching.outside() == []
        for offset in (16, -4):
            ctypes.memset(at + offset, 0, 1)
            assert watching.outside() == [guard.BadWrite(at, 16, offset)]
            ctypes.memset(at + offset, 0x11, 1)
        ctypes.memset(at + 16, 0, 1)
        give(at, 16, 0, None)
        assert watching.outside() == [guard.BadWrite(at, 16, 16)]  # seen when it was freed
