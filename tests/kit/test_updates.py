"""Operators that update buffers beside their results train on their kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow

_numbers = itertools.count()
ran: list[str] = []


def centred(x: Tensor, weight: Tensor, mean: Tensor, momentum: float = 0.1) -> Tensor:
    found = x.mean(0)
    with torch.no_grad():
        mean.mul_(1 - momentum).add_(momentum * found)
    return (x - found) * weight + mean.detach() * 0.5


def define(gradient: str) -> ow.Op[..., Any]:
    op: ow.Op[..., Any] = ow.op(name=f"centred{next(_numbers)}", namespace="updates", mutates=("mean",))(centred)

    @op.kernel("cpu")
    def kernel(x: Tensor, weight: Tensor, mean: Tensor, momentum: float) -> Tensor:
        ran.append("kernel")
        return centred(x, weight, mean, momentum)

    if gradient == "declared":

        @op.gradient
        def _(grad: Tensor, x: Tensor, weight: Tensor) -> Any:
            scaled = grad * weight
            return scaled - scaled.mean(0), (grad * (x - x.mean(0))).sum(0)

    return op


def train(call: Callable[..., Any], twice: bool = False) -> list[Tensor]:
    torch.manual_seed(0)
    x, weight, mean = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True), torch.zeros(3)
    for _ in range(2):
        loss = (call(x, weight, mean) ** 2).sum()
        if twice:
            loss.backward(retain_graph=True)
        loss.backward()
    assert x.grad is not None
    assert weight.grad is not None
    return [x.grad, weight.grad, mean]


@pytest.mark.parametrize("gradient", ["derived", "declared"])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_kernels_run_in_training(gradient: str, twice: bool) -> None:
    op = define(gradient)
    ran.clear()
    for found, expected in zip(train(op, twice), train(centred, twice), strict=True):
        torch.testing.assert_close(found, expected)
    assert ran == ["kernel", "kernel"]


@pytest.mark.parametrize("gradient", ["derived", "declared"])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_training_updates_once(gradient: str, backend: str) -> None:
    op = define(gradient)
    ran.clear()
    compiled = torch.compile(lambda x, w, m: op(x, w, m) * 1, fullgraph=True, backend=backend)
    for found, expected in zip(train(compiled), train(centred), strict=True):
        torch.testing.assert_close(found, expected)
    assert ran == ["kernel", "kernel"]


def test_the_update_is_counted() -> None:
    op = define("declared")
    for _ in range(2):
        x, mean = torch.randn(4, 3, requires_grad=True), torch.zeros(3)
        saved = (mean * x.sum()).sum()  # keeps mean for its backward
        op(x, torch.ones(3), mean)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.backward()


def test_a_buffer_that_requires_a_gradient_is_recorded_step_by_step() -> None:
    op = define("derived")

    def through(call: Callable[..., Any]) -> Tensor:
        start = torch.ones(3, requires_grad=True)
        mean = start * 1
        call(torch.arange(12.0).reshape(4, 3), torch.ones(3), mean)
        return torch.autograd.grad(mean.sum(), start)[0]

    for _ in range(2):
        torch.testing.assert_close(through(op), through(centred))


def test_explain_says_that_the_kernel_runs() -> None:
    op = define("declared")
    said = str(ow.explain(op, torch.randn(4, 3, requires_grad=True), torch.ones(3), torch.zeros(3)))
    assert "its declared gradient" in said
    assert "forward   kernel" in said


@pytest.mark.parametrize("kernel", [False, True])
def test_a_history_that_a_write_would_lose_is_refused(kernel: bool) -> None:
    def lost(x: Tensor, total: Tensor) -> Tensor:
        total.add_(x)
        return x * 2

    op: ow.Op[..., Any] = ow.op(name=f"lost{kernel}", namespace="updates", mutates=("total",), opaque=not kernel)(lost)
    if kernel:
        op.kernel("cpu")(lambda x, total: (total.add_(x), x * 2)[1])
    for _ in range(2):  # the second call as well as the first
        with pytest.raises(TypeError, match=r"its reference writes to 'total' what has a gradient, .*detached"):
            op(torch.ones(2), torch.zeros(2))


def test_tensors_of_other_kinds_are_left_alone() -> None:
    op: ow.Op[..., Any] = ow.op(name="left_alone", namespace="updates", mutates=("total",), opaque=True)(counted)
    with torch.inference_mode():
        total = torch.zeros(2)
        assert op(torch.ones(2), total).tolist() == [2, 2]
        assert total.tolist() == [1, 1]
    op = ow.op(name="left_alone_too", namespace="updates", mutates=("total",), opaque=True)(counted)
    op(torch.ones(2).as_subclass(Named), torch.zeros(2))


class Named(Tensor):
    pass


def counted(x: Tensor, total: Tensor) -> Tensor:
    with torch.no_grad():
        total.add_(1)
    return x * 2


def test_a_lost_history_is_seen_where_the_reference_reads_values() -> None:
    def reading(x: Tensor, total: Tensor) -> Tensor:
        if x.abs().max().item() < 100:
            total.add_(x)
        return x * 2

    op: ow.Op[..., Any] = ow.op(name="reading", namespace="updates", mutates=("total",), opaque=True)(reading)
    total = torch.zeros(2)
    with pytest.raises(TypeError, match="its reference writes to 'total' what has a gradient"):
        op(torch.ones(2), total)
    assert total.tolist() == [0, 0]
