"""A declared gradient is the gradient in every way that PyTorch has of taking one, whatever the signature is like."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import opwright as ow

Function = Callable[..., Any]


class Mode(enum.Enum):
    A = 1
    B = 2


class Bits(enum.Flag):
    LOW = 1
    HIGH = 2


def ways(function: Function, inductor: bool = False) -> Iterator[tuple[str, Function]]:
    """The gradient of the sum of a function of one tensor, taken in several ways."""

    def grad(run: Function, x: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(run(leaf).sum(), leaf)[0]

    def cast(x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return function(x)

    yield "eager", lambda x: grad(function, x)
    yield "again", lambda x: grad(function, x)
    yield "compiled", lambda x: grad(torch.compile(function, backend="aot_eager", fullgraph=True), x)
    if inductor:
        yield "inductor", lambda x: grad(torch.compile(function, fullgraph=True), x)
    yield "autocast", lambda x: grad(cast, x)
    yield "compiled autocast", lambda x: grad(torch.compile(cast, backend="aot_eager", fullgraph=True), x)
    transformed = torch.func.grad(lambda x: function(x).sum())
    yield "func", transformed
    yield "compiled func", torch.compile(transformed, backend="aot_eager", fullgraph=True)
    yield "vmap", lambda x: torch.vmap(transformed)(x[None])[0]


def assert_gradient(function: Function, expected: float) -> None:
    for name, grad in ways(function):
        torch.compiler.reset()
        found = grad(torch.ones(2)).float()
        assert found.tolist() == [expected, expected], name


def test_of_an_in_place_form() -> None:
    @ow.op(name="formula_inner", autocast=("x",))
    def rounded(x: Tensor) -> Tensor:
        return x.round()

    rounded_ = ow.in_place(rounded)  # before the gradient is declared

    @rounded.gradient(surrogate=True)
    def _(grad: Tensor) -> Tensor:
        return grad * 7

    @ow.op(name="formula_numpy")
    def numpy(x: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(x.detach()) * 3)

    @numpy.gradient
    def _(grad: Tensor) -> Tensor:
        return grad * 3

    numpy_ = ow.in_place(numpy)
    assert rounded_.autocast == rounded.autocast
    for _round in range(2):
        for op, expected in ((rounded_, 7.0), (numpy_, 3.0)):
            x = torch.ones(2, requires_grad=True)
            (grad,) = torch.autograd.grad(op(x * 1).sum(), x)
            assert grad.tolist() == [expected, expected]
    x = torch.ones(2, requires_grad=True)
    compiled = torch.compile(lambda x: rounded_(x * 1), backend="aot_eager", fullgraph=True)
    assert torch.autograd.grad(compiled(x).sum(), x)[0].tolist() == [7.0, 7.0]


OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
INLINE = pytest.param(
    {"compile": "inline"}, marks=pytest.mark.skipif(OLD, reason="this Dynamo traces no such function")
)


@pytest.mark.parametrize("options", [{}, INLINE])
def test_of_results_that_are_lists(options: dict[str, Any]) -> None:
    @ow.op(name=f"formula_lists_{len(options)}", **options)
    def several(x: Tensor) -> list[Tensor]:
        return [x * 3, x * 5]

    @several.gradient(surrogate=True)
    def _(grad: list[Tensor]) -> Tensor:
        return 10 * grad[0] + 100 * grad[1]

    assert_gradient(lambda x: several(x)[0] + several(x)[1], 110.0)
    assert_gradient(lambda x: several(x)[1], 100.0)


def test_of_arguments_that_cross_the_dispatcher_in_another_form() -> None:
    @ow.op(name="formula_enum")
    def chosen(x: Tensor, mode: Mode, bits: Bits) -> Tensor:
        return x * 2

    @chosen.gradient(surrogate=True)
    def _(grad: Tensor, mode: Mode, bits: Bits) -> Tensor:
        return grad * (20 if mode is Mode.B else 30) + grad * (1 if bits & Bits.HIGH else 2)

    assert_gradient(lambda x: chosen(x, Mode.B, Bits.HIGH | Bits.LOW), 21.0)
    assert_gradient(lambda x: chosen(x, Mode.A, Bits.LOW), 32.0)


@pytest.mark.parametrize("saves", [False, True])
def test_of_arguments_that_are_written(saves: bool) -> None:
    @ow.op(name=f"formula_written_{saves}", mutates="buffer")
    def counted(x: Tensor, buffer: Tensor) -> Tensor:
        y = x * buffer
        buffer.add_(1)
        return y

    if saves:

        @counted.saving("double")
        def _(x: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
            double = buffer * 2
            y = x * buffer
            buffer.add_(1)
            return y, double

        @counted.gradient
        def _(grad: Tensor, double: Tensor) -> Tensor:
            return grad * double / 2
    else:

        @counted.gradient
        def _(grad: Tensor, buffer: Tensor) -> Tensor:
            return grad * buffer

    buffer = torch.ones(2)
    for name, grad in ways(lambda x: counted(x, buffer), inductor=True):
        torch.compiler.reset()
        buffer.fill_(5.0)
        if name in ("vmap", "compiled func"):
            continue  # PyTorch cannot write wrapped values into a buffer that is none
        assert grad(torch.ones(2)).tolist() == [5.0, 5.0], name
        assert buffer.tolist() == [6.0, 6.0], name


def test_a_gradient_of_another_shape_raises_everywhere() -> None:
    @ow.op(name="formula_shape")
    def twice(x: Tensor) -> Tensor:
        return x * 2

    @twice.gradient
    def _(grad: Tensor) -> Tensor:
        return torch.stack([grad, grad, grad])

    for name, grad in ways(twice):
        torch.compiler.reset()
        with pytest.raises(Exception, match="formula_shape: its gradient returned") as caught:
            grad(torch.ones(2))
        assert caught, name


def test_an_absent_gradient_is_none_for_a_formula_that_speaks_of_it() -> None:
    @ow.op(name="formula_absent")
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    @both.gradient
    def _(grad_0: Tensor | None, grad_1: Tensor | None) -> Tensor:
        total = torch.zeros(2)
        if grad_0 is not None:
            total = total + grad_0 * 2
        return total if grad_1 is None else total + grad_1 * 3 + 1000

    for name, grad in ways(lambda x: both(x)[0]):
        if "compiled" not in name:  # PyTorch's compiler gives zeros
            assert grad(torch.ones(2)).tolist() == [2.0, 2.0], name


def test_an_autocast_inside_a_compiled_function_reaches_the_formula() -> None:
    @ow.op(name="formula_product")
    def product(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    @product.gradient
    def _(grad: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return grad @ w.t(), x.t() @ grad

    def step(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = product(x, w)
        return y.float().sum()

    for run in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        x, w = torch.ones(3, 4, requires_grad=True), torch.ones(4, 5, requires_grad=True)
        run(x, w).backward()
        assert x.grad is not None
        assert x.grad.dtype == torch.float32
        assert x.grad.tolist() == [[5.0] * 4] * 3
