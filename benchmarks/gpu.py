"""The CUDA kernels: bandwidth against a device copy, layouts against PyTorch, host time a call, a cold build.

    python benchmarks/gpu.py [--json FILE] [--only bandwidth,layouts,calls,build]

Times are medians of CUDA events, the contestants taking turns. A call's bytes are those it must move: every input read
once, every result written once.
"""

# mypy: disable-error-code=misc
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from see_through import heading

import opwright as ow
from opwright.kit.build import cuda as toolkit

ROUNDS = 25
ELEMENTS = 2**27
Call = Callable[[], Any]


def milliseconds(calls: dict[str, Call], rounds: int = ROUNDS) -> dict[str, float]:
    """The median time of each call on the GPU; they take turns, so that what disturbs one disturbs all."""
    for call in calls.values():
        for _ in range(3):
            call()
    times: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            times[name].append((begin, end))
    torch.cuda.synchronize()
    return {name: statistics.median(a.elapsed_time(b) for a, b in pairs) for name, pairs in times.items()}


def bandwidth() -> list[dict[str, Any]]:
    """Every elementwise operator, forward and backward, as a fraction of what a device copy reaches."""
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        x, y, g = (torch.randn(ELEMENTS, device="cuda").to(dtype) for _ in range(3))
        s, out = torch.sigmoid(x), torch.empty_like(x)
        cases: dict[str, tuple[int, Call]] = {
            "axpby": (3, lambda x=x, y=y: ow.axpby(x, y, a=2.0, b=3.0)),
            "axpby_backward": (3, lambda g=g, x=x, y=y: ow.axpby.backward(g, x, y, a=2.0, b=3.0)),
            "axpby_backward, one": (2, lambda g=g, x=x, y=y: ow.axpby.backward(g, x, y, a=2.0, wanted=[True, False])),
            "scale": (2, lambda x=x: ow.scale(x, 3.0)),
            "scale_backward": (2, lambda g=g, x=x: ow.scale.backward(g, x, 3.0)),
            "sigmoid": (2, lambda x=x: ow.sigmoid(x)),
            "sigmoid_backward": (3, lambda g=g, s=s: ow.sigmoid.backward(g, s)),
            "cube": (2, lambda x=x: ow.cube(x)),
            "cube_backward": (3, lambda g=g, x=x: ow.cube.backward(g, x)),
            "torch.add": (3, lambda x=x, y=y: torch.add(x, y, alpha=2.0)),
            "torch.mul": (2, lambda x=x: x * 2.0),
        }
        for name, (tensors, call) in cases.items():
            took = milliseconds({"copy": lambda out=out, x=x: out.copy_(x), name: call})
            copied = 2 * x.nbytes / took["copy"] / 1e9
            moved = tensors * x.nbytes / took[name] / 1e9
            rows.append(
                {"what": "bandwidth", "op": name, "dtype": str(dtype)[6:], "elements": ELEMENTS, "TB/s": moved,
                 "copy TB/s": copied, "fraction": moved / copied}
            )  # fmt: skip
            print(
                f"{name:22s} {str(dtype)[6:]:9s} {moved:6.3f} TB/s, copy {copied:6.3f}: {moved / copied:.4f}",
                flush=True,
            )
    return rows


def layouts() -> list[dict[str, Any]]:
    """Transposed, broadcast and strided operands, against PyTorch's own addition."""
    rows = []
    n = 8192
    for dtype in (torch.float32, torch.bfloat16):
        m, k = (torch.randn(n, n, device="cuda").to(dtype) for _ in range(2))
        row, column = torch.randn(n, device="cuda").to(dtype), torch.randn(n, 1, device="cuda").to(dtype)
        stack = torch.randn(64, 1024, 1024, device="cuda").to(dtype)
        operands: dict[str, tuple[Tensor, Tensor]] = {
            "transposed": (m.t(), k),
            "both transposed": (m.t(), k.t()),
            "batch of transposed": (stack.transpose(1, 2), stack),
            "row": (m, row),
            "column": (m, column),
            "row and column": (row, column),
            "slice": (m[:, : n // 2], k[:, n // 2 :]),
            "odd slice": (m[:, 1:], k[:, 1:]),
            "every second": (m[:, ::2], k[:, 1::2]),
            "not aligned": (m.view(-1)[1:], k.view(-1)[1:]),
        }
        for name, (p, q) in operands.items():
            took = milliseconds(
                {"ours": lambda p=p, q=q: ow.axpby(p, q, a=2.0), "torch": lambda p=p, q=q: torch.add(q, p, alpha=2.0)}
            )
            ratio = took["ours"] / took["torch"]
            rows.append({"what": "layout", "case": name, "dtype": str(dtype)[6:], **took, "ratio": ratio})
            print(
                f"axpby {name:20s} {str(dtype)[6:]:9s} {took['ours']:.4f} ms, torch {took['torch']:.4f}: {ratio:.3f}",
                flush=True,
            )
    return rows


def microseconds(call: Call, calls: int = 2000) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    took = (time.perf_counter() - start) / calls * 1e6
    torch.cuda.synchronize()
    return took


def calls() -> list[dict[str, Any]]:
    """Host time a call of 16 elements, against torch.add."""
    x, y = torch.randn(2, 16, device="cuda")
    contestants: dict[str, Call] = {
        "axpby": lambda: ow.axpby(x, y, a=2.0),
        "torch.add": lambda: torch.add(x, y, alpha=2.0),
    }
    rows = []
    for mode in ("inference", "plain"):
        with torch.inference_mode(mode == "inference"):
            took: dict[str, list[float]] = {name: [] for name in contestants}
            for _ in range(15):
                for name, call in contestants.items():
                    took[name].append(microseconds(call))
        least = {name: min(t) for name, t in took.items()}
        ratio = statistics.median(a / b for a, b in zip(took["axpby"], took["torch.add"], strict=True))
        rows.append({"what": "host", "mode": mode, "elements": 16, "us": least, "ratio": ratio})
        print(
            f"host time, {mode}: axpby {least['axpby']:.2f} us, torch.add {least['torch.add']:.2f}: {ratio:.2f}",
            flush=True,
        )
    return rows


OURS = """
import time, torch
x = torch.ones(8, device="cuda")
torch.cuda.synchronize()
import opwright as ow
start = time.perf_counter()
assert ow.axpby(x, x, a=2).tolist() == [3.0] * 8
print(time.perf_counter() - start)
assert ow.explain(ow.axpby, x, x).runs == "cuda.cu"
"""
EXTENSION = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

template <class T>
__global__ void axpby_kernel(const T* x, const T* y, T* out, double a, double b, int64_t n) {
    const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (i < n) out[i] = static_cast<T>(float(a) * static_cast<float>(x[i]) + float(b) * static_cast<float>(y[i]));
}

at::Tensor axpby(at::Tensor x, at::Tensor y, double a, double b) {
    const c10::cuda::CUDAGuard guard(x.device());
    auto out = at::empty_like(x);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "axpby", [&] {
        axpby_kernel<scalar_t><<<(x.numel() + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
            x.const_data_ptr<scalar_t>(), y.const_data_ptr<scalar_t>(), out.mutable_data_ptr<scalar_t>(), a, b,
            x.numel());
    });
    return out;
}
"""
THEIRS = """
import sys, time, torch
from torch.utils.cpp_extension import load_inline
x = torch.ones(8, device="cuda")
torch.cuda.synchronize()
start = time.perf_counter()
declared = "at::Tensor axpby(at::Tensor x, at::Tensor y, double a, double b);"
source = open(sys.argv[1]).read()
module = load_inline("axpby_inline", cpp_sources=declared, cuda_sources=source, functions=["axpby"],
                     build_directory=sys.argv[2])
assert module.axpby(x, x, 2.0, 1.0).tolist() == [3.0] * 8
print(time.perf_counter() - start)
"""


def build() -> list[dict[str, Any]]:
    """A cold build of one .cu and its first call, against torch.utils.cpp_extension.load_inline."""
    major, minor = torch.cuda.get_device_capability()
    with tempfile.TemporaryDirectory() as scratch:
        source, folder = Path(scratch, "axpby.cu"), Path(scratch, "inline")
        source.write_text(EXTENSION)
        folder.mkdir()
        environment = {"OPWRIGHT_CACHE_DIR": f"{scratch}/cache", "TORCH_CUDA_ARCH_LIST": f"{major}.{minor}"}
        ours = _seconds(OURS, environment)
        theirs = _seconds(THEIRS, environment, str(source), str(folder))
    print(f"cold build and first call: {ours:.1f} s, load_inline {theirs:.1f} s: {ours / theirs:.3f}", flush=True)
    return [{"what": "build", "cold_s": ours, "load_inline_s": theirs, "ratio": ours / theirs}]


def _seconds(code: str, environment: dict[str, str], *arguments: str) -> float:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # ninja lies beside the interpreter
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, check=True,
        env={**os.environ, "PATH": path, **environment},
    )  # fmt: skip
    return float(done.stdout.split()[-1])


PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "bandwidth": bandwidth,
    "layouts": layouts,
    "calls": calls,
    "build": build,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default=",".join(PARTS))
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu.py: there is no GPU here; `opwright doctor` says why")
    about = heading()
    about["machine"]["gpu"] = torch.cuda.get_device_name()
    about["versions"] |= {
        "cuda": torch.version.cuda,
        "nvcc": ".".join(map(str, toolkit.nvcc().release)),
        "driver": ".".join(map(str, toolkit.driver() or ())),
    }
    rows: list[dict[str, Any]] = []
    for name in chosen.only.split(","):
        with torch.inference_mode(name in ("bandwidth", "layouts")):  # tensors keep the mode they are made in
            rows += PARTS[name]()
        if chosen.json:  # at once, so that a later failure loses nothing
            chosen.json.parent.mkdir(parents=True, exist_ok=True)
            chosen.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
