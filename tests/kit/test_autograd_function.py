"""What torch.autograd.Function can do, and how an operator says it: each row of docs/autograd-function.md, run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import opwright as ow

PAGE = Path(__file__).parent.parent.parent / "docs" / "autograd-function.md"

ROWS: dict[str, Callable[[], None]] = {}


def row(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(function: Callable[[], None]) -> Callable[[], None]:
        ROWS[name] = function
        return function

    return add


def gradients(function: Callable[..., Any], *inputs: Tensor) -> list[Any]:
    leaves = [t.clone().requires_grad_() for t in inputs]
    out = function(*leaves)
    out = out if isinstance(out, Tensor) else next(o for o in out if o.requires_grad)
    return [None if g is None else g.tolist() for g in torch.autograd.grad(out.sum(), leaves, allow_unused=True)]


def applied(function: Any) -> Any:
    return function.apply


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * grad * x


X = torch.tensor([1.0, 3.0])


def squared() -> ow.Op[..., Any]:
    @ow.op(name="function_square")
    def square(x: Tensor) -> Tensor:
        return x * x

    @square.gradient
    def _(grad: Tensor, x: Tensor) -> Tensor:
        return 2 * grad * x

    return square


@row("save_for_backward")
def saves() -> None:
    assert gradients(Square.apply, X) == gradients(squared(), X) == [[2.0, 6.0]]


@row("save_for_backward of an intermediate")
def saves_an_intermediate() -> None:
    class Gate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            s = torch.sigmoid(x)
            ctx.save_for_backward(s)
            return 2 * s

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            (s,) = ctx.saved_tensors
            return 2 * grad * s * (1 - s)

    @ow.op(name="function_gate")
    def gate(x: Tensor) -> Tensor:
        return 2 * torch.sigmoid(x)

    @gate.saving("s")
    def _(x: Tensor) -> Any:
        s = torch.sigmoid(x)
        return 2 * s, s

    @gate.gradient
    def _(grad: Tensor, s: Tensor) -> Tensor:
        return 2 * grad * s * (1 - s)

    assert gradients(Gate.apply, X) == gradients(gate, X)
    # And where Function loses the second derivative without a word, the operator has it.
    x = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(gate, x)
    assert not torch.autograd.gradgradcheck(Gate.apply, x, raise_exception=False)


@row("ctx.anything")
def keeps_what_is_no_tensor() -> None:
    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
            ctx.by = by
            return x * by

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return grad * ctx.by, None

    @ow.op(name="function_times")
    def times(x: Tensor, by: float) -> Tensor:
        return x * by

    @times.gradient
    def _(grad: Tensor, by: float) -> Tensor:
        return grad * by

    assert gradients(lambda x: applied(Times)(x, 3.0), X) == gradients(lambda x: times(x, 3.0), X) == [[3.0, 3.0]]


@row("mark_dirty")
def writes() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return 2 * grad

    @ow.op(name="function_double_")
    def double_(x: Tensor) -> Tensor:
        return x.mul_(2)

    for function in (Double.apply, double_):
        x = X.clone().requires_grad_()
        y = x * 1
        assert function(y) is y
        y.sum().backward()
        assert x.grad is not None
        assert (y.tolist(), x.grad.tolist()) == ([2.0, 6.0], [2.0, 2.0])


@row("mark_non_differentiable")
def marks() -> None:
    class Sorted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            values, where = x.sort()
            ctx.mark_non_differentiable(where)
            ctx.save_for_backward(where)
            return values, where

        @staticmethod
        def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
            return torch.zeros_like(grad).scatter(0, ctx.saved_tensors[0], grad)

    @ow.op(name="function_sorted", nondifferentiable=[1], opaque=True)
    def ordered(x: Tensor) -> tuple[Tensor, Tensor]:
        values, where = x.sort()
        return values, where

    for function in (Sorted.apply, ordered):
        values, where = function(X.clone().requires_grad_())
        assert (values.requires_grad, where.requires_grad) == (True, False)
    assert gradients(Sorted.apply, X) == gradients(ordered, X)


@row("set_materialize_grads")
def leaves_gradients_absent() -> None:
    seen: list[Any] = []

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            ctx.set_materialize_grads(False)
            return x + 1, x * 2

        @staticmethod
        def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Any:
            seen.append((a is None, b is None))
            return a if b is None else b * 2

    @ow.op(name="function_both")
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x * 2

    @both.gradient
    def _(grad_0: Tensor | None, grad_1: Tensor | None) -> Any:
        seen.append((grad_0 is None, grad_1 is None))
        return grad_0 if grad_1 is None else grad_1 * 2

    for function in (Both.apply, both):
        x = X.clone().requires_grad_()
        function(x)[1].sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2.0, 2.0]
    assert seen[0] == seen[-1] == (True, False)


@row("needs_input_grad")
def computes_what_is_wanted() -> None:
    seen: list[Any] = []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            x, y = ctx.saved_tensors
            seen.append(list(ctx.needs_input_grad))
            return grad * y if ctx.needs_input_grad[0] else None, grad * x if ctx.needs_input_grad[1] else None

    @ow.op(name="function_product")
    def product(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @product.gradient
    def _(grad: Tensor, x: Tensor, y: Tensor, wanted: list[bool]) -> Any:
        seen.append(list(wanted))
        return grad * y if wanted[0] else None, grad * x if wanted[1] else None

    for function in (Product.apply, product):
        x = X.clone().requires_grad_()
        function(x, torch.ones(2)).sum().backward()
    assert seen[0] == seen[-1] == [True, False]


@row("once_differentiable")
def refuses_a_second_derivative() -> None:
    class Once(Square):
        @staticmethod
        @once_differentiable  # type: ignore[untyped-decorator,unused-ignore]
        def backward(ctx: Any, grad: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return 2 * grad * x

    @ow.op(name="function_once")
    def square(x: Tensor) -> Tensor:
        return x * x

    @square.saving("double", once=True)
    def _(x: Tensor) -> Any:
        return x * x, 2 * x

    @square.gradient
    def _(grad: Tensor, double: Tensor) -> Tensor:
        return grad * double

    for function in (Once.apply, square):
        x = X.clone().requires_grad_()
        incoming = torch.ones(2, requires_grad=True)
        (first,) = torch.autograd.grad(function(x), x, incoming, create_graph=True)
        with pytest.raises((RuntimeError, TypeError), match="once"):
            first.sum().backward()
    # Where what comes in has no history, Function passes it over without a word.
    x = X.clone().requires_grad_()
    assert not torch.autograd.grad(applied(Once)(x).sum(), x, create_graph=True)[0].requires_grad
    (first,) = torch.autograd.grad(square(x).sum(), x, create_graph=True)
    with pytest.raises((RuntimeError, TypeError), match="once"):
        first.sum().backward()
    x = X.clone().requires_grad_()  # whoever does not declare it has the derivative
    (first,) = torch.autograd.grad(squared()(x).sum(), x, create_graph=True)
    assert torch.autograd.grad(first.sum(), x)[0].tolist() == [2.0, 2.0]


class Apart(torch.autograd.Function):
    """With setup_context, and what torch.func asks of a Function."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return 2 * grad * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Any:
        return 2 * tangent * ctx.saved_tensors[0]


@row("setup_context")
def is_transformed() -> None:
    for function in (Apart.apply, squared()):
        assert torch.func.grad(lambda x, f=function: f(x).sum())(X).tolist() == [2.0, 6.0]


@row("jvp")
def goes_forward() -> None:
    for function in (Apart.apply, squared()):
        pair: Any = torch.func.jvp(function, (X,), (torch.ones(2),))
        out, tangent = pair
        assert (out.tolist(), tangent.tolist()) == ([1.0, 9.0], [2.0, 6.0])


@row("generate_vmap_rule")
def is_batched() -> None:
    for function in (Apart.apply, squared()):
        assert torch.func.vmap(function)(X.reshape(2, 1)).tolist() == [[1.0], [9.0]]


@row("vmap")
def is_batched_by_a_rule() -> None:
    class Rows(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.sum(-1)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.size = inputs[0].shape[-1]

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return grad.unsqueeze(-1).expand(*grad.shape, ctx.size)

        @staticmethod
        def vmap(info: Any, dims: Any, x: Tensor) -> Any:
            return applied(Rows)(x.movedim(dims[0], 0)), 0

    calls: list[int] = []

    @ow.op(name="function_rows", vmap="leading")
    def rows(x: Tensor) -> Tensor:
        return x.sum(-1)

    @rows.kernel("cpu")
    def _(x: Tensor) -> Tensor:
        calls.append(x.dim())
        return x.sum(-1)

    for function in (Rows.apply, rows):
        assert torch.func.vmap(function, in_dims=1)(torch.eye(3)).tolist() == [1.0, 1.0, 1.0]
    assert calls == [2]  # the kernel, once, with the whole batch


@pytest.mark.parametrize("name", ROWS)
def test_an_operator_does_what_the_function_does(name: str) -> None:
    ROWS[name]()


def test_the_page_has_a_row_for_each_and_no_other() -> None:
    rows = re.findall(r"^\| `([^`]+)`([^|]*) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(feature + more).strip() for feature, more in rows] == list(ROWS)
