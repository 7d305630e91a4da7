"""Operators like a newcomer's on the GPU: one kernel or none, no declared gradient, no kernel for the CPU."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.spec.probe import BadReference
from tests.cuda import needs_gpu

pytestmark = needs_gpu

OP = """
import torch, opwright as ow
from torch import Tensor

@ow.op
def newcomer(x: Tensor) -> Tensor:
    return torch.softmax(x * 2, -1)

@newcomer.samples
def _(make):
    yield make(3, 5)
    yield make(64, 33)

newcomer.kernel_file("cuda.cu", ow.Domain(dtypes=(torch.float32,), layout="contiguous", sizes="x[n, k]"))
"""
KERNEL = """
#include <opwright/kernel.h>
// One thread a row: slow, right, and what a first kernel looks like.
__global__ void rows(const float* x, float* out, int64_t n, int64_t k) {
    const int64_t row = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (row >= n) return;
    float most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < k; ++i) most = fmaxf(most, 2 * x[row * k + i]);
    for (int64_t i = 0; i < k; ++i) sum += expf(2 * x[row * k + i] - most);
    for (int64_t i = 0; i < k; ++i) out[row * k + i] = expf(2 * x[row * k + i] - most) / sum;
}
Tensor newcomer_cuda(const Tensor& x) {
    Tensor out = empty(x, dtype(x));
    launch(rows, {ceil_div(x.size(0), 128), 128}, data<const float>(x), data<float>(out), x.size(0), x.size(1));
    return out;
}
OPWRIGHT_KERNEL(newcomer, CUDA, newcomer_cuda);
"""


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("ops") / "newcomer"
    folder.mkdir()
    (folder / "op.py").write_text(textwrap.dedent(OP))
    (folder / "cuda.cu").write_text(KERNEL)
    return ow.load(Path(folder)).newcomer


@ow.op(opaque=True, namespace="newcomers")
def soft(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def trained(call: Any, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (call(x) ** 2).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_derived_gradient_trains_in_compiled_graphs(backend: str) -> None:
    x = torch.randn(8, 16, device="cuda")
    expected = trained(lambda x: torch.softmax(x, -1), x)
    for call in (soft, torch.compile(lambda x: soft(x), backend=backend, fullgraph=True)):
        for _round in range(2):
            torch.testing.assert_close(trained(call, x), expected)


def test_a_derived_gradient_passes_pytorchs_own_check() -> None:
    torch.library.opcheck(torch.ops.newcomers.soft.default, (torch.randn(4, 3, device="cuda", requires_grad=True),))


def test_one_kernel_and_nothing_else_trains(newcomer: Any) -> None:
    x = torch.randn(8, 16, device="cuda")
    expected = trained(lambda x: torch.softmax(x * 2, -1), x)
    assert ow.explain(newcomer, x).runs == "cuda.cu"
    for call in (newcomer, torch.compile(lambda x: newcomer(x), fullgraph=True)):
        for _round in range(2):
            torch.testing.assert_close(trained(call, x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(trained(newcomer, x.cpu()), expected.cpu(), rtol=1e-4, atol=1e-5)


def test_one_kernel_and_nothing_else_is_proved(newcomer: Any) -> None:
    report = ow.check(newcomer, device="cuda", only=("forward", "gradients", "fake", "opcheck", "compile"))
    assert report.passed, str(report)


def test_draws_on_the_gpu_are_seen_by_a_derived_gradient() -> None:
    @ow.op(opaque=True, namespace="newcomers")
    def dropping(x: Tensor, train: bool) -> Tensor:
        return torch.nn.functional.dropout(x, 0.5, train) * 1

    x = torch.ones(64, device="cuda", requires_grad=True)
    dropping(x, False).sum().backward()
    with pytest.raises(BadReference, match="draws random numbers"):
        dropping(x, True).sum().backward()


def test_updates_and_views_on_the_gpu() -> None:
    @ow.op(mutates=("mean",), namespace="newcomers")
    def centred(x: Tensor, mean: Tensor) -> Tensor:
        found = x.mean(0)
        with torch.no_grad():
            mean.mul_(0.9).add_(0.1 * found)
        return (x - found).t().t()

    ran = []

    @centred.kernel("cuda")
    def _(x: Tensor, mean: Tensor) -> Tensor:
        ran.append(1)
        found = x.mean(0)
        mean.mul_(0.9).add_(0.1 * found)
        return (x - found).t().t()

    for _round in range(2):
        x, mean = torch.randn(4, 3, device="cuda", requires_grad=True), torch.zeros(3, device="cuda")
        y = centred(x, mean)
        y += 1
        (y**2).sum().backward()
        torch.testing.assert_close(mean, 0.1 * x.detach().mean(0))
        torch.testing.assert_close(x.grad, 2 * (x - x.mean(0)).detach(), rtol=1e-4, atol=1e-5)
    assert len(ran) == 2


def test_the_check_goes_on_where_a_bad_index_would_end_the_gpu() -> None:
    @ow.op(opaque=True, nondifferentiable="index")
    def picked(x: Tensor, index: Tensor) -> Tensor:
        return x[index]

    @picked.samples
    def _(make: ow.Maker) -> Any:
        yield make(5, 3), torch.tensor([4, 0, 2], device=make.device)

    report = ow.check(picked, device="cuda", only=("forward", "rejects", "vmap", "gradients"))
    assert report.passed, report
    assert torch.ones(2, device="cuda").sum().item() == 2
