"""Streams, graphs, large tensors, errors: what every launch must get right."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import opwright as ow
from opwright.kit.check.properties import large
from tests.cuda import needs_gpu, needs_two_gpus

pytestmark = needs_gpu
EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "kernels"


def test_kernels_run_on_the_current_stream() -> None:
    x = torch.zeros(1 << 20, device="cuda")
    ow.axpby(x, x)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)  # a kernel on another stream would read before the fill
        x.fill_(1.0)
        results = [ow.axpby(x, x, a=2), ow.scale(x, 3), ow.cube(x + 1), ow.sigmoid(x * 0)]
    side.synchronize()
    assert [r.unique().tolist() for r in results] == [[3.0], [3.0], [8.0], [0.5]]


def test_the_backward_runs_on_the_stream_of_the_forward() -> None:
    x = torch.zeros(1 << 20, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = ow.cube(x)
        grad = torch.zeros_like(y)
        torch.cuda._sleep(100_000_000)
        with torch.no_grad():
            x.fill_(2.0)
            grad.fill_(1.0)
    x.data = x.data  # the version is of no interest here
    with torch.cuda.stream(side), torch.no_grad():
        got = ow.cube.backward(grad, x).grad_x
    side.synchronize()
    assert got.unique().tolist() == [12.0]


@needs_two_gpus
def test_kernels_run_on_the_device_of_their_tensors() -> None:
    x = torch.ones(100, device="cuda:1")
    torch.cuda.set_device(0)
    assert ow.axpby(x, x).device == x.device
    assert ow.axpby(x, x).tolist() == [2.0] * 100
    assert torch.cuda.current_device() == 0


def test_graphs_capture_forward_and_backward() -> None:
    x = torch.ones(1000, device="cuda")
    grad = torch.ones(1000, device="cuda")
    ow.axpby(ow.cube(x), x), ow.cube.backward(grad, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ow.axpby(ow.cube(x), x.view(10, 100).t().reshape(-1), a=2)
        back = ow.cube.backward(grad, x).grad_x
    for value in (2.0, 3.0):
        x.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert out.unique().tolist() == [2 * value**3 + value]
        assert back.unique().tolist() == [3 * value**2]


@large.turn()
def test_more_than_2_to_the_31_elements() -> None:
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("less than 40 GiB of GPU memory are free")
    n = (1 << 31) + 5
    x = torch.ones(n, device="cuda", dtype=torch.bfloat16)
    x[-1] = 3
    out = ow.axpby(x, x)
    assert out[-3:].tolist() == [2.0, 2.0, 6.0]
    assert int((out == 2).sum()) == n - 1
    del out
    wide = torch.ones(3, 1 << 30, device="cuda", dtype=torch.bfloat16)
    wide[2, -2] = 2
    for part in (wide[:, ::2], wide[:, 1:]):  # strided; rows that are not aligned
        out = ow.cube(part)
        assert int((out == 1).sum()) == out.numel() - 1
        assert float(out.max()) == 8.0
        del out
    column = torch.arange(3, device="cuda", dtype=torch.bfloat16)[:, None]
    out = ow.axpby(wide, column, a=0)  # broadcast
    assert [float(r.float().mean()) for r in out] == [0.0, 1.0, 2.0]
    del out, wide
    tall = torch.ones(1 << 16, (1 << 15) + 8, device="cuda", dtype=torch.bfloat16)
    tall[7, 9] = 4
    out = ow.axpby(tall.t(), torch.ones((1 << 15) + 8, 1 << 16, device="cuda", dtype=torch.bfloat16), a=2)
    assert out[9, 7].item() == 9.0
    assert int((out == 3).sum()) == out.numel() - 1


def test_nothing_is_written_beside_the_result() -> None:
    for n in (1, 7, 255, 1000, 2049):
        for offset in range(5):
            whole = torch.full((n + 64,), 77.0, device="cuda")
            view = whole[16 + offset : 16 + offset + n]
            torch.ops.opwright.axpby_(view, torch.ones(n, device="cuda"), a=0)
            assert view.unique().tolist() == [1.0]
            assert whole[: 16 + offset].unique().tolist() == [77.0]
            assert whole[16 + offset + n :].unique().tolist() == [77.0]


def test_results_are_the_same_each_time() -> None:
    grad = torch.randn(3000, 500, device="cuda")
    x, y = torch.randn(3000, 500, device="cuda"), torch.randn(500, device="cuda")
    first = ow.axpby.backward(grad, x, y, a=2.0, b=3.0)
    for _ in range(5):
        again = ow.axpby.backward(grad, x, y, a=2.0, b=3.0)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_examples_run_and_differentiate() -> None:
    ops: Any = ow.load(EXAMPLES)
    for name, file in (("outer", "cuda.cu"), ("saxpy", "bind.cpp"), ("row_norms", "cuda.cu")):
        op = getattr(ops, name)
        samples, exacts = (
            op.draw_samples(ow.Maker(d, p)) for d, p in ((torch.float32, "cuda"), (torch.float64, "cpu"))
        )
        for sample, exact in zip(samples, exacts, strict=True):
            assert ow.explain(op, *sample.args, **sample.kwargs).runs == file
            got, want = op(*sample.args, **sample.kwargs), op.reference(*exact.args, **exact.kwargs)
            torch.testing.assert_close(got.cpu().double(), want, rtol=1e-5, atol=1e-6)
    x = torch.randn(5, device="cuda", requires_grad=True)
    ops.outer(x, torch.ones(3, device="cuda")).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0] * 5


FAULTY = """
import torch, opwright as ow, pathlib, sys
@ow.op
def faulty(x: torch.Tensor) -> torch.Tensor:
    return x * 1
faulty.kernel_file("cuda.cu")
@ow.op
def fine(x: torch.Tensor) -> torch.Tensor:
    return x * 1
fine.kernel_file("cuda.cu")
"""
FAULTS = """
#include <opwright/kernel.h>
__global__ void wild(float* out) { out[1ll << 40] = 1; }
__global__ void idle(float* out) {}
Tensor faulty(const Tensor& x) {
    Tensor out = empty(Layout(x), dtype(x));
    if (x.numel() == 1) launch(idle, {1, 4096}, data<float>(out));
    if (x.numel() == 2) launch(wild, {1, 1}, data<float>(out));
    return out;
}
Tensor fine(const Tensor& x) { return map([] __device__(auto v) { return v * 1; }, x); }
OPWRIGHT_KERNEL(faulty, CUDA, faulty);
OPWRIGHT_KERNEL(fine, CUDA, fine);
"""


def use(folder: Path, code: str, **environment: str) -> str:
    head = f"import torch, opwright as ow\nops = ow.load({str(folder / 'op.py')!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)], capture_output=True, text=True, check=False,
        env={**os.environ, **environment}, timeout=240,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_errors_name_the_operator(tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text(FAULTY)
    (tmp_path / "cuda.cu").write_text(FAULTS)
    said = use(tmp_path, "ops.faulty(torch.ones(1, device='cuda'))")
    assert "faulty: the launch failed: invalid" in said
    assert "threads (4096, 1, 1)" in said
    code = """
    x = torch.ones(2, device="cuda")
    try:
        ops.faulty(x)
        ops.fine(x)
        ops.fine(x)
        torch.cuda.synchronize()
    except Exception as e:
        print("SAID", str(e).splitlines()[0])
    """
    assert "SAID faulty: the kernel failed: an illegal memory access" in use(tmp_path, code, OPWRIGHT_CUDA_SYNC="1")
    assert "SAID faulty" not in use(tmp_path, code)  # unattributed: CUDA tells later, in somebody else's call


def test_a_library_without_code_for_this_gpu_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text(FAULTY)
    (tmp_path / "cuda.cu").write_text(FAULTS)
    major, minor = torch.cuda.get_device_capability()
    other = "8.0" if major != 8 else "9.0"
    environment = {"OPWRIGHT_CUDA_ARCH": other, "OPWRIGHT_CACHE_DIR": str(tmp_path / "cache")}
    said = use(tmp_path, "print(ops.fine(torch.ones(2, device='cuda')).tolist())", **environment)
    assert "[1.0, 1.0]" in said  # from the reference
    assert f"has code for {other} and none for the {torch.cuda.get_device_name()}" in said
    assert f"OPWRIGHT_CUDA_ARCH='{major}.{minor}' opwright build --device cuda" in said
    # the same by PTX alone, which the driver compiles for the GPU at hand
    environment["OPWRIGHT_CUDA_ARCH"] = "8.0+PTX"
    said = use(tmp_path, "print(ops.fine(torch.ones(2, device='cuda')).tolist())", **environment)
    assert "RuntimeWarning" not in said
