"""Strings, extensions and adopted functions on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import opwright as ow
from tests.cuda import needs_gpu

pytestmark = needs_gpu
EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "extension"

KERNEL = """
#include <opwright/kernel.h>
Tensor tripled_cuda(const Tensor& x) {
    return map([] __device__(auto v) { return 3 * v; }, x);
}
OPWRIGHT_KERNEL(tripled, CUDA, tripled_cuda);
"""


def test_a_kernel_from_a_string_runs_on_the_gpu_and_its_errors_name_the_line() -> None:
    @ow.op(name="tripled")
    def tripled(x: Tensor) -> Tensor:
        return 3 * x

    tripled.kernel_source("cuda", KERNEL, ow.Domain(dtypes=ow.FLOATING))
    x = torch.ones(5, device="cuda", requires_grad=True)
    assert tripled(x).tolist() == [3.0] * 5
    assert ow.explain(tripled, x.detach()).runs == "cuda source"
    tripled(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0] * 5
    tripled.kernel_source("cuda", KERNEL.replace("3 * v", "nowhere"), ow.Domain(dtypes=ow.FLOATING))
    with pytest.raises(ow.BuildError, match=r'string 1 of tripled\'s kernel, line 4: error: identifier "nowhere"'):
        tripled(x)


def test_functions_of_cuda_strings_run_alone_and_behind_cpp() -> None:
    kernel = KERNEL.partition("OPWRIGHT_KERNEL")[0]
    alone = ow.inline(cuda_sources=kernel, functions=["tripled_cuda"])
    assert alone.tripled_cuda(torch.ones(2, device="cuda")).tolist() == [3.0, 3.0]
    with pytest.raises(NotImplementedError, match="it is built for cuda, got a tensor on cpu"):
        alone.tripled_cuda(torch.ones(2))
    cpp = "Tensor tripled_cuda(const Tensor& x);\nTensor tripled(const Tensor& x) { return tripled_cuda(x); }"
    behind = ow.inline(cpp, kernel, functions=["tripled"])
    assert behind.tripled(torch.ones(2, device="cuda")).tolist() == [3.0, 3.0]


def test_the_tutorials_extension_for_cuda_holds_but_for_its_second_derivative() -> None:
    lltm_step = ow.load(EXAMPLES / "lltm_step.py").lltm_step
    report = ow.check(lltm_step, device="cuda", only=["forward", "gradients", "adopted"])
    assert {f.property for f in report.failures} == {"adopted"}
    assert "its own" in report.failures[0].message
