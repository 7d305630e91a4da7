"""Kernels that opwright's own C++ calls without PyTorch's boxes: tensors are lent, and live on for who keeps one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import opwright as ow
from opwright.kit.dispatch import native

OPERATORS = """
import torch
from torch import Tensor
import opwright as ow

@ow.op
def lent_keep(x: Tensor, bias: Tensor | None = None, *, scale: ow.Number = 1, twice: bool = False, n: int = 3) -> tuple[
    Tensor, Tensor
]:
    ow.require(n < 10, "n must be below 10, got {n}")
    out = x * scale + n * (2 if twice else 1)
    return (out if bias is None else out + bias), x + 1.0

@ow.op
def lent_kept(x: Tensor) -> Tensor:
    return x * 0

@ow.op
def lent_same(x: Tensor) -> Tensor:
    return x * 1

@ow.op
def lent_together(x: Tensor, y: Tensor, *, sizes: list[int] = [], word: str = "", share: float | None = 1) -> Tensor:
    return x * 0 + y * 0

@ow.op
def lent_lists(x: Tensor, *, sizes: list[int] = [1, 2], word: str = "add", share: float | None = None) -> Tensor:
    return x * (1 if share is None else share) + (sum(sizes) if word == "add" else len(word) * len(sizes))

for op in (lent_keep, lent_kept, lent_same, lent_together, lent_lists):
    op.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,)))
"""
KERNELS = """
#include <opwright/kernel.h>

static std::vector<Tensor> kept;

std::tuple<Tensor, Tensor> lent_keep_cpu(Tensor x, const std::optional<Tensor>& bias, double scale, bool twice,
                                         int64_t n) {
    check(n < 10, "the kernel takes no such n");
    if (n < 0) throw std::runtime_error("the kernel alone says no");
    kept = {x};
    if (bias) kept.push_back(*bias);
    const float s = float(scale), more = float(n * (twice ? 2 : 1));
    Tensor out = bias ? map([=](float v, float b) { return v * s + more + b; }, x, *bias)
                      : map([=](float v) { return v * s + more; }, x);
    return {out, map([](float v) { return v + 1; }, x)};
}
// What was kept last: it is the caller's no more.
Tensor lent_kept_cpu(const Tensor&) { return map([](float v) { return v; }, kept.back()); }
Tensor lent_same_cpu(const Tensor& x) { return x; }

// Tensors that are lent lie side by side; those that cross PyTorch's boxes are allocated one by one.
Tensor lent_together_cpu(const Tensor& x, const Tensor& y, const std::vector<int64_t>&, const std::string&,
                         const std::optional<double>&) {
    const auto place = [](const Tensor& t) { return reinterpret_cast<const char*>(t.get()); };
    const float together = place(y) - place(x) == sizeof(void*);
    return map([=](float) { return together; }, x);
}

Tensor lent_lists_cpu(const Tensor& x, const std::vector<int64_t>& sizes, const std::string& word,
                      const std::optional<double>& share) {
    int64_t all = 0;
    for (const int64_t each : sizes) all += each;
    const float more = float(word == "add" ? all : int64_t(word.size() * sizes.size())), s = float(share.value_or(1));
    return map([=](float v) { return v * s + more; }, x);
}

OPWRIGHT_KERNEL(lent_lists, CPU, lent_lists_cpu);
OPWRIGHT_KERNEL(lent_together, CPU, lent_together_cpu);
OPWRIGHT_KERNEL(lent_keep, CPU, lent_keep_cpu);
OPWRIGHT_KERNEL(lent_kept, CPU, lent_kept_cpu);
OPWRIGHT_KERNEL(lent_same, CPU, lent_same_cpu);
"""


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("lent") / "lent"
    folder.mkdir()
    (folder / "op.py").write_text(OPERATORS, encoding="utf-8")
    (folder / "cpu.cpp").write_text(KERNELS, encoding="utf-8")
    return ow.load(folder)


@pytest.mark.parametrize("recorded", [False, True])
def test_every_argument_arrives(ops: Any, recorded: bool) -> None:
    x = torch.randn(3, 4, requires_grad=recorded)
    for bias in (None, torch.randn(3, 4)):
        for options in ({}, {"scale": 2}, {"scale": -0.5, "twice": True}, {"n": -0, "scale": 2**40}):
            out, more = ops.lent_keep(x, bias, **options)
            expected = ops.lent_keep.reference(x, bias, **options)
            torch.testing.assert_close((out, more), expected, rtol=0, atol=0)
            assert out.requires_grad == recorded


def test_lists_texts_and_what_may_be_absent_arrive(ops: Any) -> None:
    x = torch.randn(3, 4)
    for _ in range(2):  # the first call goes through Python
        for sizes in ([], [5], [1, -2, 3], list(range(100))):
            for word in ("", "add", "a word that is longer than what fits beside a text's length"):
                for share in (None, 0.5, 2):
                    found = ops.lent_lists(x, sizes=sizes, word=word, share=share)
                    expected = ops.lent_lists.reference(x, sizes=sizes, word=word, share=share)
                    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.skipif(native.available() is not None, reason="opwright's own C++ is not built")
def test_tensors_are_lent(ops: Any) -> None:
    x, y = torch.ones(1), torch.ones(1)
    ops.lent_together(x, y)  # the first call goes through Python
    assert ops.lent_together(x, y).item() == 1
    assert torch.ops.user.lent_together(x, y).item() == 1
    overload = ops.lent_together.kernels[0].overload
    assert overload(x, y, [], "", None).item() == 0  # by way of the dispatcher


def test_what_a_kernel_keeps_stays(ops: Any) -> None:
    for value in range(20):
        ops.lent_keep(torch.full((1000,), float(value)))
        # Memory that was let go would be these tensors' now.
        others = [torch.full((1000,), -1.0) for _ in range(50)]
        assert torch.equal(ops.lent_kept(torch.zeros(1)), torch.full((1000,), float(value)))
        del others


def test_the_last_of_several_that_are_kept(ops: Any) -> None:
    ops.lent_keep(torch.zeros(1000), torch.full((1000,), 7.0))
    others = [torch.full((1000,), -1.0) for _ in range(50)]
    assert torch.equal(ops.lent_kept(torch.zeros(1)), torch.full((1000,), 7.0))
    del others


def test_what_a_kernel_throws(ops: Any) -> None:
    with pytest.raises(ValueError, match="n must be below 10, got 10"):
        ops.lent_keep(torch.ones(3), n=10)
    with pytest.raises(RuntimeError, match="the kernel alone says no"):
        ops.lent_keep(torch.ones(3), n=-1)
    assert ops.lent_keep(torch.ones(3), n=1)[0].tolist() == [2, 2, 2]


def test_a_kernel_that_returns_its_argument(ops: Any) -> None:
    x = torch.ones(3)
    assert ops.lent_same(x).data_ptr() == x.data_ptr()
    del x
    with pytest.raises(TypeError, match="lent_same: its kernel returned one of its arguments"):
        ops.lent_same(torch.ones(3, requires_grad=True))
