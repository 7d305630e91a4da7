"""Flags that a project means for its own code: strict warnings, inexact numbers, linkers that drop what they can."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.cpp import workplace

pytestmark = [workplace.needs_cmake, pytest.mark.slow]

OPERATOR = """
import torch
from torch import Tensor
import opwright as ow

@ow.op(namespace="flags")
def both(x: Tensor) -> tuple[Tensor, Tensor]:
    return 2 * x, 3 * x

both.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,)))
"""
KERNEL = """
#include <opwright/kernel.h>

std::tuple<Tensor, Tensor> both_cpu(const Tensor& x) {
    return {map([](float v) { return 2 * v; }, x), map([](float v) { return 3 * v; }, x)};
}
OPWRIGHT_KERNEL(both, CPU, both_cpu);
"""
PROGRAM = """
#include <ATen/ATen.h>
#include <ops/operators.h>

#include <iostream>

int main() {
    const auto [twice, thrice] = flags::both(at::ones({1}));
    std::cout << twice.item<float>() << " " << thrice.item<float>() << "\\n";
    std::cout << opwright::sigmoid(at::full({1}, std::stof("nan"))).isnan().all().item<bool>() << "\\n";
}
"""
BODY = """
set(CMAKE_CXX_STANDARD 20)
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wold-style-cast -Werror)
opwright_add_operators(ops {0} opwright.sigmoid opwright.axpby)
add_executable(strict strict.cpp)
target_link_libraries(strict PRIVATE ops)
"""
FLAGS = ("-DCMAKE_CXX_FLAGS=-ffunction-sections -fdata-sections", "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,--gc-sections")
INEXACT = "add_compile_options(-ffast-math)"


def test_flags_of_a_project_are_for_its_own_code(tmp_path: Path) -> None:
    folder = tmp_path / "both"
    folder.mkdir()
    (folder / "op.py").write_text(OPERATOR)
    (folder / "cpu.cpp").write_text(KERNEL)
    project = workplace.write_project(tmp_path / "project", INEXACT + BODY.format(folder), strict=PROGRAM)
    build = workplace.built(project, tmp_path / "build", *FLAGS)
    assert workplace.run(str(build / "strict")).stdout == "2 3\n1\n"
