"""What callers in C++ hand in: lists, tensors that are absent, names that are macros; and libraries beside Python's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import opwright as ow
from opwright.kit.dispatch import native
from tests.kit.cpp import workplace

OPERATOR = """
import torch
from torch import Tensor
import opwright as ow

@ow.op(namespace="arguments")
def mixed(x: Tensor, others: list[Tensor], bias: Tensor | None = None, *, linux: int = 1) -> Tensor:
    "linux · (x + Σ others + bias)"
    ow.require(linux > 0, "linux must be positive, got {linux}")
    total = x + sum(others) if bias is None else x + sum(others) + bias
    return total * linux

mixed.kernel_file("rows.cpp", ow.Domain(dtypes=(torch.float32,), ranks={"x": 1}))
mixed.kernel_file("any.cpp", ow.Domain(dtypes=(torch.float64,)))
"""
KERNEL = """
#include <opwright/kernel.h>

Tensor mixed_cpu(const Tensor& x, const std::vector<Tensor>& others, const std::optional<Tensor>& bias, int64_t n) {
    check(n > 0, "linux must be positive");
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        const auto add = [](C a, C b) { return a + b; };
        Tensor total = map([](C v) { return v; }, x);
        for (const Tensor& each : others) total = map(add, total, each);
        if (bias) total = map(add, total, *bias);
        return map([n = C(n)](C v) { return v * n; }, total);
    });
}
OPWRIGHT_KERNEL(mixed, CPU, mixed_cpu);
"""
PROGRAM = """
#include <ATen/ATen.h>
#include <odd/operators.h>

#include <functional>
#include <iostream>

void attempt(const std::function<at::Tensor()>& call) {
    try {
        std::cout << call().sum().item<double>() << "\\n";
    } catch (const c10::Error& e) {
        std::cout << e.what_without_backtrace() << "\\n";
    }
}

int main() {
    const at::Tensor x = at::ones({2}), none;
    attempt([&] { return arguments::mixed(x, {x, x}, none, {.linux_ = 2}); });
    attempt([&] { return opwright::linear(x, at::ones({3, 2}), none); });
    attempt([&] { return arguments::mixed(x, {x, none}); });
    attempt([&] { return arguments::mixed(x.to(at::kInt), {}); });
}
"""
BODY = """
opwright_add_operators(odd "{0}/a folder" opwright.linear)
add_executable(hands hands.cpp)
target_link_libraries(hands PRIVATE odd)
"""
DOMAINS = "its kernel for CPU takes tensors of float32, x of 1 dimension, another takes tensors of float64"
BESIDE = """
import sys
import torch, opwright
torch.ops.load_library(sys.argv[1])
x = torch.ones(2)
print(torch.ops.arguments.mixed(x, [x]).tolist(), torch.ops.opwright.linear(x, torch.ones(3, 2)).tolist())
print(opwright.load(sys.argv[2]).mixed(x.int(), [x.int()]).tolist())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arguments") / "a folder"
    folder.mkdir()
    (folder / "op.py").write_text(OPERATOR)
    for name in ("rows.cpp", "any.cpp"):
        (folder / name).write_text(KERNEL)
    return folder


@pytest.fixture(scope="module")
def build(folder: Path) -> Path:
    project = workplace.write_project(folder.parent / "project", BODY.format(folder.parent), hands=PROGRAM)
    return workplace.built(project, folder.parent / "build")


@pytest.mark.slow
@workplace.needs_cmake
def test_what_is_absent_is_taken_or_named(build: Path) -> None:
    taken, linear, absent, whole = workplace.run(str(build / "hands")).stdout.splitlines()
    assert (taken, linear) == ("12", "6")
    assert absent.startswith(
        "arguments::mixed: a tensor of others is absent; its kernel for CPU takes tensors of float32"
    )
    assert "x is Float[2] on cpu; its kernel for CPU takes tensors of float64. All else its reference takes" in absent
    assert whole.startswith(f"arguments::mixed: x is Int[2] on cpu; {DOMAINS}. All else its reference takes")


@pytest.mark.slow
@workplace.needs_cmake
def test_a_library_brings_what_python_has_not_beside_what_it_has(build: Path, folder: Path) -> None:
    done = workplace.run(sys.executable, "-c", BESIDE, str(build / "libodd.so"), str(folder), OPWRIGHT_QUIET="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[2.0, 2.0] [2.0, 2.0, 2.0]", "[2, 2]"]
    assert "odd: " not in done.stderr


@pytest.mark.skipif(native.available() is not None, reason="opwright's own C++ is not built")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_list_stays_the_callers(folder: Path) -> None:
    mixed, x = ow.load(folder).mixed, torch.ones(2)
    assert mixed(x, [x]).tolist() == [2, 2]

    def twice(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        given = [x, x]
        torch.ops.arguments.mixed(x, given)
        return torch.ops.arguments.mixed(x, given), given

    result, given = torch.jit.script(twice)(x)
    assert result.tolist() == [3, 3]
    assert [each.tolist() for each in given] == [[1, 1], [1, 1]]
    with pytest.raises(ValueError, match="mixed: linux must be positive, got -1"):
        mixed(x, [x], linux=-1)  # the kernel has seen the list, and the reference says what is wrong
