"""Second derivatives: right, or an error where PyTorch has one; never zeros in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import opwright as ow
from opwright.kit.derive import derive


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        grad_x: Tensor = 3 * grad * x * x
        return grad_x


class Numpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(3 * grad.detach().numpy() * x.detach().numpy() ** 2)


@pytest.mark.parametrize("power", [1, 2])  # of a result that is summed up, the incoming gradient has no history
@pytest.mark.parametrize("kind", ["once", "numpy", "cond"])
def test_second_derivatives_that_pytorch_refuses_are_no_zeros(kind: str, power: int) -> None:
    references: dict[str, Callable[[Tensor], Tensor]] = {
        "once": lambda x: Once.apply(x),  # type: ignore[no-untyped-call,no-any-return]
        "numpy": lambda x: Numpy.apply(x),  # type: ignore[no-untyped-call,no-any-return]
        "cond": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
    }

    @ow.op(name=f"refused_twice_{kind}_{power}", opaque=True)
    def op(x: Tensor) -> Tensor:
        return references[kind](x)

    for function in (op.reference, op, op):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        (g,) = torch.autograd.grad((function(x) ** power).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match=r"differentiate twice|does not require grad"):
            (g**2).sum().backward()


def test_second_derivatives_that_are_zero_are_zeros() -> None:
    @ow.op(name="twice_linear", opaque=True)
    def linear(x: Tensor, y: Tensor) -> Tensor:
        return 2 * x + y.round() + (x > 0)

    x, y = (torch.ones(2, requires_grad=True) for _ in range(2))
    first = torch.autograd.grad((linear(x, y) ** 2).sum(), [x, y], create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in first), [x, y])  # type: ignore[arg-type]
    assert [g.tolist() for g in second] == [[256.0, 256.0], [0.0, 0.0]]


@pytest.mark.parametrize("opaque", [None, True])
def test_what_is_differentiable_once_is_right_under_torch_func(opaque: bool | None) -> None:
    """There the gradient is computed from the inputs alone: with what was saved held fast, it would be zeros."""

    @ow.op(name=f"once_cubed_{opaque}", opaque=opaque)
    def cubed(x: Tensor) -> Tensor:
        return x**3

    @cubed.saving("square", once=True)
    def _(x: Tensor) -> tuple[Tensor, Tensor]:
        return x**3, x * x

    @cubed.gradient
    def _(grad: Tensor, square: Tensor) -> Tensor:
        return 3 * grad * square

    def penalty(x: Tensor) -> Tensor:
        inner = torch.func.grad(lambda x: cubed(x).sum())
        outer: Tensor = torch.func.grad(lambda x: inner(x).pow(2).sum())(x)
        return outer

    x = torch.tensor([1.0, 2.0])
    assert penalty(x).tolist() == [36.0, 288.0]
    cubed(x.clone().requires_grad_()).sum().backward()  # from now on in C++
    assert penalty(x).tolist() == [36.0, 288.0]
    torch.compiler.reset()
    assert torch.compile(penalty, backend="aot_eager", fullgraph=True)(x).tolist() == [36.0, 288.0]


@pytest.mark.parametrize(
    ("name", "reference", "raises"),
    [
        ("unseen", lambda x: torch.tensor([2 * v for v in x.tolist()]), True),
        ("handed_over", lambda x: torch.from_numpy(x.detach().numpy() * 3), True),
        ("step", lambda x: (x > 0.5).float(), False),
        ("constants", lambda x: (x > torch.tensor([0.5, 1.5]).tolist()[0]).float(), False),
        ("stopped", lambda x: 2 * x.detach(), False),
        ("constant", lambda x: torch.ones_like(x), False),
    ],
)
def test_zeros_are_given_for_what_stands_still_and_not_for_what_pytorch_cannot_see(
    name: str, reference: Callable[[Tensor], Tensor], raises: bool
) -> None:
    @ow.op(name=f"still_{name}", opaque=True)
    def op(x: Tensor) -> Tensor:
        return reference(x)

    x = torch.rand(100, requires_grad=True)
    loss = op(x).sum()
    if raises:
        with pytest.raises(RuntimeError, match="PyTorch has no derivative of a function that it cannot see"):
            loss.backward()
    else:
        loss.backward()
        assert x.grad is not None
        assert not x.grad.any()


def test_a_fault_in_a_derivation_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not look like an operator that has no gradient."""

    @ow.op(name="derived_wrongly")
    def op(x: Tensor) -> Tensor:
        return x * 2

    def wrong(*args: Any, **kwargs: Any) -> Any:
        raise TypeError("a fault of ours")

    monkeypatch.setattr(derive, "_derived", wrong)
    with pytest.raises(TypeError, match="a fault of ours"):
        _ = op.has_rung
