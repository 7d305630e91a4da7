"""Strings, extensions and adopted functions on a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

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


LLTM = """
import runpy, sys
import torch
import opwright as ow

example = runpy.run_path(sys.argv[1], run_name="__main__")
step, plain, sources = (example[name] for name in ("lltm_step", "plain", "sources"))
print("loaded", flush=True)
x, h, c = (torch.rand(2, n, device="cuda", dtype=torch.float64) for n in (4, 3, 3))
weight, bias = (torch.rand(*shape, device="cuda", dtype=torch.float64) for shape in ((9, 7), (9,)))
given = [t.requires_grad_() for t in (x, weight, bias, h, c)]
print(ow.explain(step, *given), flush=True)
new_h, new_c = step(*given)
torch.cuda.synchronize()
print("ran forward", flush=True)
got = torch.autograd.grad((new_h.sum() + new_c.square().sum()), given)
torch.cuda.synchronize()
print("ran backward", flush=True)
right_h, right_c = plain(*given)
torch.testing.assert_close((new_h, new_c), (right_h, right_c))
torch.testing.assert_close(got, torch.autograd.grad((right_h.sum() + right_c.square().sum()), given))
print("is right", flush=True)
empty = step(x[:0], weight, bias, h[:0], c[:0])
torch.cuda.synchronize()
assert [t.shape for t in empty] == [(0, 3), (0, 3)]
try:
    ow.load_extension(sources, name="lltm_cuda").forward(x.cpu(), weight, bias, h, c)
except RuntimeError as e:
    assert "x must be a CUDA tensor" in str(e), e
print("takes what is empty, and says what it does not take", flush=True)
"""


def test_the_tutorials_extension_for_cuda_runs_forward_and_backward() -> None:
    # In a process of its own, so that one that ends without a word says how far it came, and where.
    command = [sys.executable, "-X", "faulthandler", "-c", LLTM, str(EXAMPLES / "lltm_step.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"rc {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}"
    assert "says what it does not take" in done.stdout


def test_the_tutorials_extension_for_cuda_holds_but_for_its_second_derivative() -> None:
    lltm_step = ow.load(EXAMPLES / "lltm_step.py").lltm_step
    report = ow.check(lltm_step, device="cuda", only=["forward", "gradients", "adopted"])
    assert {f.property for f in report.failures} == {"adopted"}, f"{report}"
    assert "its own" in report.failures[0].message


class Tripled(torch.autograd.Function):
    ran: ClassVar[list[str]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Any:
        ctx.save_for_backward(x, w)
        return x * w * 3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        Tripled.ran.append("function")
        x, w = ctx.saved_tensors
        return grad * w * 3, grad * x * 3


def back(grad: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    Tripled.ran.append("pair")
    return grad * w * 3, grad * x * 3


def test_what_is_adopted_runs_its_own_backward_here_too() -> None:
    def tripled(x: Tensor, w: Tensor) -> Tensor:
        return x * w * 3

    x, w = (torch.randn(5, device="cuda", requires_grad=True) for _ in range(2))
    ways = {
        "function": ow.adopt(Tripled, reference=tripled, name="tripled_function"),
        "pair": ow.adopt(lambda x, w: x * w * 3, backward=back, reference=tripled, name="tripled_pair"),
    }
    for name, op in ways.items():
        Tripled.ran.clear()
        for _ in range(2):
            got = torch.autograd.grad(op(x, w).sum(), (x, w))
            torch.testing.assert_close(got, (w * 3, x * 3))
        assert Tripled.ran == [name, name]
