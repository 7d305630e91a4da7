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
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
inline int cudaMalloc(void** p, size_t n) { return (*p = std::malloc(n)) ? cudaSuccess : 1; }
inline int cudaFree(void* p) { std::free(p); return cudaSuccess; }
inline int cudaMemset(void* p, int byte, size_t n) { std::memset(p, byte, n); return cudaSuccess; }
inline int cudaMemcpy(void* to, const void* from, size_t n, int) { std::memcpy(to, from, n); return cudaSuccess; }
inline int device = 3;
inline int cudaGetDevice(int* which) { return *which = device, cudaSuccess; }
inline int cudaSetDevice(int which) { return device = which, cudaSuccess; }
inline int cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    *status = stream ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
inline int cudaDeviceSynchronize() { return cudaSuccess; }
inline int cudaGetLastError() { return cudaSuccess; }
"""


CALLED = """
#include <cuda_runtime_api.h>
#include <stdexcept>
#include <string>
#include <sys/types.h>
extern "C" void* opwright_cuda_alloc(ssize_t, int, cudaStream_t);
extern "C" __attribute__((visibility("default"))) const char* refusal(ssize_t size, cudaStream_t stream) try {
    opwright_cuda_alloc(size, 0, stream);
    return "";
} catch (const std::runtime_error& e) {
    static std::string said;
    return (said = e.what()).c_str();
}
extern "C" __attribute__((visibility("default"))) int current() { return device; }
"""


class StandIn(guard.CudaGuard):
    """The back end of a GPU without one."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.take, self.give = self.library.opwright_cuda_alloc, self.library.opwright_cuda_free
        self.take.argtypes, self.take.restype = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        self.give.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.give.restype = None
        self.library.refusal.argtypes = [ctypes.c_ssize_t, ctypes.c_void_p]
        self.library.refusal.restype = ctypes.c_char_p


@pytest.fixture
def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    (tmp_path / "cuda_runtime_api.h").write_text(STAND_IN)
    (tmp_path / "called.cpp").write_text(CALLED)
    sources = (*own.guard("cuda").sources, tmp_path / "called.cpp")
    plan = Plan("check_cuda", sources, Options(include=(str(tmp_path),)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return StandIn(compile.build(plan).to_load())


def test_what_runs_on_a_gpu_is_where_it_is_looked_for() -> None:
    assert all(source.is_file() for device in ("cpu", "cuda") for source in own.guard(device).sources)
    assert find_spec(sanitizer.WATCHED) is not None


def test_the_guard_of_a_gpu_sees_writes_on_either_side(watching: StandIn) -> None:
    with watching.filling(0x5A, 0x11):
        at = watching.take(16, 0, None)
        assert ctypes.string_at(at, 16) == b"\x5a" * 16
        assert watching.outside() == []
        for offset in (16, -4):
            ctypes.memset(at + offset, 0, 1)
            assert watching.outside() == [guard.BadWrite(at, 16, offset)]
            assert watching.outside() == []  # each is told once
        ctypes.memset(at + 16, 0, 1)
        watching.give(at, 16, 0, None)
        assert watching.outside() == [guard.BadWrite(at, 16, 16)]  # seen when it was freed
        assert watching.library.current() == 3  # PyTorch's own, and not the last that memory was taken on


def test_the_guard_of_a_gpu_sees_equal_bytes_all_over_a_band(watching: StandIn) -> None:
    """A block that writes zeros where it read nothing leaves no byte that tells what had been there."""
    with watching.filling(0x5A, 0x11):
        at = watching.take(16, 0, None)
        ctypes.memset(at + 16, 0, 4096)
        assert watching.outside() == [guard.BadWrite(at, 16, 16)]
        with watching.filling(0x5A, 0x22):
            assert watching.outside() == []  # what was there before has its own bytes around it
        watching.give(at, 16, 0, None)


def test_the_guard_of_a_gpu_refuses_aloud_what_it_cannot_give(watching: StandIn) -> None:
    """PyTorch would take a null pointer for memory; and memory of a captured graph must outlive its tensor."""
    watching.limit(100)
    at = watching.take(60, 0, None)
    said = watching.library.refusal(60, None).decode()
    assert said == "CUDA out of memory: 60 bytes more than the 60 that are watched"
    watching.give(at, 60, 0, None)
    assert watching.library.refusal(60, None) == b""
    assert b"captured in a CUDA graph" in watching.library.refusal(1, 1)
