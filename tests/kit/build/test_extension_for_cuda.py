"""The tutorial's extension for CUDA where there is no GPU: nvcc builds it, and its kernels run on the CPU, a thread at
a time, so that the check says of them what it would say there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import opwright as ow
from tests.kit.build.nvcc import needs_nvcc

pytestmark = pytest.mark.slow  # torch/extension.h

EXAMPLES = Path(__file__).parent.parent.parent.parent / "examples" / "extension"
KERNELS = (EXAMPLES / "lltm_cuda_kernel.cu").read_text(encoding="utf-8")

ON_THE_CPU = """
#include <torch/extension.h>

#include <cmath>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline

struct dim3 {
    unsigned x = 1, y = 1;
    dim3(unsigned x = 1, unsigned y = 1) : x(x), y(y) {}
};

static dim3 blockIdx, threadIdx, blockDim;

template <class F>
void launch(dim3 grid, dim3 block, F thread) {
    TORCH_CHECK(grid.x && grid.y && grid.y < 65536, "CUDA error: invalid configuration argument");
    blockDim = block;
    for (unsigned i = 0; i < grid.x * grid.y * block.x; ++i) {
        threadIdx.x = i % block.x;
        blockIdx = dim3(i / block.x % grid.x, i / block.x / grid.x);
        thread();
    }
}

using std::exp, std::expm1, std::tanh;
"""


def _on_the_cpu(folder: Path, kernels: str, name: str) -> ow.Op[..., Any]:
    """The example in a folder of its own, with the sources for CUDA, in which a launch is a loop."""
    kernels = re.sub(r"#include <cuda.*\n", "", kernels).replace("#include <torch/extension.h>", ON_THE_CPU)
    kernels = kernels.replace("RestrictPtrTraits", "DefaultPtrTraits")  # the other one is for nvcc
    launch = re.compile(r"(\w+<scalar_t>)<<<(.+?), THREADS>>>\((.+?)\);\n", re.DOTALL)
    kernels, count = launch.subn(r"launch(\2, THREADS, [&] { \1(\3); });\n", kernels)
    assert count == 2
    main = (EXAMPLES / "lltm_cuda.cpp").read_text(encoding="utf-8").replace("x.device().is_cuda()", "true")
    example = (EXAMPLES / "lltm_step.py").read_text(encoding="utf-8").replace("torch.cuda.is_available()", "True")
    example = example.replace("lltm_cuda_kernel.cu", "lltm_cuda_kernel.cpp").replace('"cuda", CONT', '"cpu", CONT')
    example = example.replace("lltm_step", name)
    for file, text in {"lltm_cuda.cpp": main, "lltm_cuda_kernel.cpp": kernels, "lltm_step.py": example}.items():
        (folder / file).write_text(text, encoding="utf-8")
    made: ow.Op[..., Any] = getattr(ow.load(folder / "lltm_step.py"), name)
    return made


def test_the_kernels_hold_but_for_their_second_derivative_and_take_what_is_empty(tmp_path: Path) -> None:
    lltm_step = _on_the_cpu(tmp_path, KERNELS, "lltm_threads")
    report = ow.check(lltm_step, only=["forward", "gradients", "adopted"])
    assert {f.property for f in report.failures} == {"adopted"}, str(report)
    assert "its own second derivative" in report.failures[0].message
    for batch, hidden in ((0, 3), (2, 0)):
        state = [torch.ones(batch, hidden, requires_grad=True) for _ in range(2)]
        given = torch.ones(batch, 4), torch.ones(3 * hidden, hidden + 4), torch.ones(3 * hidden), *state
        assert ow.explain(lltm_step, *given).runs == "forward"
        new_h, _ = lltm_step(*given)
        new_h.sum().backward()
        assert new_h.shape == (batch, hidden)
        assert state[0].grad is not None


def test_the_check_finds_that_the_tutorials_own_elu_loses_what_is_small(tmp_path: Path) -> None:
    published = KERNELS.replace("expm1(z)", "exp(z) - T(1)")
    assert published != KERNELS
    report = ow.check(_on_the_cpu(tmp_path, published, "lltm_published"), only=["forward"])
    assert report.failures, str(report)
    assert "+2^-" in report.failures[0].sample, "it is found by small numbers"


@needs_nvcc
def test_the_extension_builds_and_loads_without_a_gpu() -> None:
    sources = [EXAMPLES / "lltm_cuda.cpp", EXAMPLES / "lltm_cuda_kernel.cu"]
    made = ow.load_extension(sources, name="lltm_cuda", extra_cuda_cflags=["-gencode=arch=compute_90,code=sm_90"])
    with pytest.raises(RuntimeError, match="x must be a CUDA tensor"):
        made.forward(*(torch.ones(2, 2) for _ in range(5)))
