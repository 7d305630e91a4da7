"""Operators in C++ programs where parts meet: equal names in two files, one operator in two libraries, tensors without
gradients, operators that write, libraries that are closed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.cpp import workplace

pytestmark = [workplace.needs_cmake, pytest.mark.slow]

OPERATOR = """
import torch
from torch import Tensor
import opwright as ow

{declared}
"""
PLAIN = """
@ow.op(namespace="corners")
def {name}(x: Tensor) -> Tensor:
    return x * {factor}

{name}.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,)))
"""
PLAIN_KERNEL = """
#include <opwright/kernel.h>

inline float factor_of_file() {{ return {factor}; }}
Tensor {name}_cpu(const Tensor& x) {{ return map([](float v) {{ return v * factor_of_file(); }}, x); }}
OPWRIGHT_KERNEL({name}, CPU, {name}_cpu);
"""
MASKED = """
@ow.op(namespace="corners", nondifferentiable=("mask",))
def masked(x: Tensor, mask: Tensor) -> Tensor:
    return x * mask.detach()

@masked.gradient
def _(grad: Tensor, mask: Tensor) -> Tensor:
    return grad * mask

@ow.op(namespace="corners", mutates=("total",))
def gather_up(total: Tensor, x: Tensor) -> None:
    total.add_(x)

@ow.op(namespace="corners")
def double_(x: Tensor) -> Tensor:
    return x.mul_(2)

for op in (masked, masked.backward, gather_up, double_):
    op.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,)))
"""
MASKED_KERNEL = """
#include <opwright/kernel.h>

Tensor masked_cpu(const Tensor& x, const Tensor& mask) { return map([](float v, float m) { return v * m; }, x, mask); }
Tensor masked_backward_cpu(const Tensor& grad, const Tensor& mask, const Wanted&) { return masked_cpu(grad, mask); }
void gather_up_cpu(Tensor& total, const Tensor& x) {
    map_into(total, [](float t, float v) { return t + v; }, total, x);
}
void double_cpu(Tensor& x) { map_into(x, [](float v) { return 2 * v; }, x); }

OPWRIGHT_KERNEL(masked, CPU, masked_cpu);
OPWRIGHT_KERNEL(masked_backward, CPU, masked_backward_cpu);
OPWRIGHT_KERNEL(gather_up, CPU, gather_up_cpu);
OPWRIGHT_KERNEL(double_, CPU, double_cpu);
"""
PROGRAM = """
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <first/operators.h>
#include <second/operators.h>

#include <iostream>

int main() {
    const at::Tensor x = at::ones({2}), wanting = at::ones({2}).requires_grad_();
    std::cout << corners::twice(x).sum().item<float>() << " " << corners::thrice(x).sum().item<float>() << "\\n";
    std::cout << corners::masked(x, wanting).requires_grad() << corners::masked(wanting, x).requires_grad();
    {
        const at::AutoDispatchBelowAutograd below;
        std::cout << corners::masked(wanting, x).requires_grad();
    }
    std::cout << "\\n";
    at::Tensor total = at::zeros({2});
    corners::gather_up(total, x);
    std::cout << total.sum().item<float>() << " " << corners::double_(total).sum().item<float>() << "\\n";
    try {
        corners::gather_up(total, wanting);
        std::cout << "served\\n";
    } catch (const c10::Error& e) {
        std::cout << e.what_without_backtrace() << "\\n";
    }
}
"""
BODY = """
opwright_add_operators(first {0}/twice {0}/thrice {0}/masked)
opwright_add_operators(second {0}/twice)
add_executable(meets meets.cpp)
target_link_libraries(meets PRIVATE first second)
"""


def write(folder: Path, declared: str, kernel: str) -> None:
    folder.mkdir(parents=True)
    (folder / "op.py").write_text(OPERATOR.format(declared=declared))
    (folder / "cpu.cpp").write_text(kernel)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corners")
    for name, factor in (("twice", "2.0"), ("thrice", "3.0")):
        write(root / name, PLAIN.format(name=name, factor=factor), PLAIN_KERNEL.format(name=name, factor=factor))
    write(root / "masked", MASKED, MASKED_KERNEL)
    project = workplace.write_project(root / "project", BODY.format(root), meets=PROGRAM)
    return workplace.built(project, root / "build")


def test_what_meets_in_a_program_stays_apart(place: Path) -> None:
    done = workplace.run(str(place / "meets"))
    assert done.returncode == 0, done.stdout + done.stderr
    sums, requires, written, refused = done.stdout.splitlines()
    assert sums == "4 6"
    assert requires == "010"  # a mask has no gradient; below autograd nothing is recorded
    assert written == "2 4"
    assert "gather_up: autograd would record what its reference does" in refused


CLOSES = """
import _ctypes, ctypes, sys
import torch
library = ctypes.CDLL(sys.argv[1])
_ctypes.dlclose(library._handle)
print(torch.ops.corners.twice(torch.ones(2)).sum().item())
"""


def test_a_library_that_is_closed_stays(place: Path) -> None:
    done = workplace.run(sys.executable, "-c", CLOSES, str(place / "libfirst.so"))
    assert done.stdout == "4.0\n", done.stderr
