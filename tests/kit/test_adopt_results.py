"""Results of what was adopted: integers, which have no gradient, and strides, which are those that were promised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.dispatch import layout

# --- without a gradient ---------------------------------------------------------------------------------------------


def signs(x: Tensor) -> Tensor:
    return (x > 0).to(torch.int64)


def positive(x: Tensor) -> Tensor:
    return x > 0


def with_signs(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, (x > 0).to(torch.int64)


@torch.library.custom_op("adopted_results::signs", mutates_args=())
def custom_signs(x: Tensor) -> Tensor:
    return (x > 0).to(torch.int64)


@custom_signs.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, dtype=torch.int64)


ran: list[str] = []
WAYS: dict[str, Any] = {"function": lambda x: (x > 0).long(), "custom_op": custom_signs}


@pytest.mark.parametrize("way", WAYS)
def test_integers_are_given_though_the_argument_requires_a_gradient(way: str) -> None:
    op = ow.adopt(WAYS[way], reference=signs, name=f"adopted_signs_{way}")
    x = torch.tensor([-1.0, 2.0], requires_grad=True)
    assert op(x).tolist() == [0, 1]
    assert not op(x).requires_grad

    @op.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(7, 9)

    report = ow.check(op, only=["forward", "gradients", "adopted", "gradcheck", "undefined", "fake", "opcheck"])
    assert report.passed, report


def test_a_gradient_beside_integers_is_still_asked_for() -> None:
    op = ow.adopt(lambda x: (x * 2, (x > 0).long()), reference=with_signs, name="adopted_with_signs")
    x = torch.tensor([-1.0, 2.0], requires_grad=True)
    op(x)[0].sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]
    lost = ow.adopt(lambda x: (x.detach() * 2, (x > 0).long()), reference=with_signs, name="adopted_without_history")
    with pytest.raises(TypeError, match="autograd records nothing"):
        lost(x)

    @op.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(7, 9) + 3

    report = ow.check(op, only=["gradients", "adopted", "gradcheck", "undefined"])
    assert report.passed, report


def test_booleans_need_no_gradient_either() -> None:
    op = ow.adopt(lambda x: x > 0, reference=positive, name="adopted_positive")
    assert op(torch.tensor([-1.0, 2.0], requires_grad=True)).tolist() == [False, True]


@pytest.mark.parametrize("named", [[0], ["x"]])
def test_an_operator_that_is_declared_nondifferentiable_is_adopted_without_a_gradient(named: list[Any]) -> None:
    @ow.op(nondifferentiable=named)
    def adopted_plain_signs(x: Tensor) -> Tensor:
        return (x > 0).to(torch.int64)

    @adopted_plain_signs.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(7, 9)

    def counted(x: Tensor) -> Tensor:
        ran.append("signs")
        return (x > 0).long()

    op = ow.adopt(counted, reference=adopted_plain_signs)
    ran.clear()
    assert op(torch.tensor([-1.0, 2.0], requires_grad=True)).tolist() == [0, 1]
    assert ran == ["signs"]
    assert not op.has_rung
    report = ow.check(op, only=["forward", "work", "gradients", "adopted", "fake", "opcheck", "rejects"])
    assert report.passed, report


def test_a_backward_where_nothing_is_differentiable_is_refused() -> None:
    @ow.op(nondifferentiable=["x"])
    def adopted_constant_signs(x: Tensor) -> Tensor:
        return (x > 0).to(torch.int64)

    with pytest.raises(TypeError, match="no use for a backward"):
        ow.adopt(lambda x: (x > 0).long(), reference=adopted_constant_signs, backward=lambda grad, x: grad)


# --- strides --------------------------------------------------------------------------------------------------------


def weighed(x: Tensor, w: Tensor) -> Tensor:
    return x * 2 * w


def always_contiguous(x: Tensor, w: Tensor) -> Tensor:
    ran.append("forward")
    return (x * 2 * w).contiguous()


def its_backward(grad: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    ran.append("backward")
    return (grad * 2 * w).contiguous(), (grad * 2 * x).contiguous()


class Weighed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return always_contiguous(x, w)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return its_backward(grads[0], *ctx.saved_tensors)


LAID: dict[str, Any] = {
    "pair": ow.adopt(
        always_contiguous, reference=weighed, backward=its_backward, takes=["grad", "x", "w"], name="adopted_laid_pair"
    ),
    "function": ow.adopt(Weighed, reference=weighed, name="adopted_laid_function"),
}


@pytest.mark.parametrize("way", LAID)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_graph_gets_the_strides_that_it_was_compiled_for(way: str, backend: str) -> None:
    op = LAID[way]
    made = [torch.randn(33, 3).t().requires_grad_() for _ in range(2)]
    compiled = torch.compile(lambda x, w: op.overload(x * 1, w * 1), backend=backend, fullgraph=True)
    ran.clear()
    out, grad = compiled(*made), torch.randn(33, 3).t()
    found = torch.autograd.grad(out, made, grad)
    assert ran == ["forward", "backward"]  # the graph holds what was adopted, and not its reference
    assert out.stride() == (1, 3)
    torch.testing.assert_close(out, weighed(*made))
    for got, right in zip(found, torch.autograd.grad(weighed(*made), made, grad), strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("way", LAID)
def test_the_check_takes_an_original_that_is_always_contiguous(way: str) -> None:
    op: ow.Op[..., Any] = LAID[way]

    @op.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(3, 33), make(3, 33)

    report = ow.check(op, only=["fake", "opcheck", "gradients"])
    assert report.passed, report


def test_what_is_promised_is_asked_once_for_contiguous_tensors_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    original = layout._faked

    def counting(*args: Any) -> Any:
        asked.append(args)
        return original(*args)

    monkeypatch.setattr(layout, "_faked", counting)
    op = ow.adopt(
        always_contiguous, reference=weighed, backward=its_backward, takes=["grad", "x", "w"], name="adopted_asks"
    )
    for n in range(2, 9):
        op(torch.ones(n, 3), torch.ones(n, 3))
    assert len(asked) == 1
    for n in (4, 5, 4):
        assert op(torch.ones(3, n).t(), torch.ones(3, n).t()).stride() == (1, n)
    assert len(asked) == 3


def test_contiguous_arguments_may_lead_to_other_strides() -> None:
    def turned(x: Tensor) -> Tensor:
        return (x * 2).t().clone()

    op = ow.adopt(lambda x: (x * 2).t().contiguous(), reference=turned, name="adopted_turned")
    for n in (3, 4):
        x = torch.randn(2, n)
        assert op(x).stride() == turned(x).stride()
        assert torch.equal(op(x), turned(x))


def test_a_side_of_one_promises_nothing_for_longer_ones() -> None:
    def turned(x: Tensor) -> Tensor:
        return (2 * x).t()

    op = ow.adopt(lambda x: (2 * x).t().contiguous(), reference=turned, name="turned_late")
    for columns in (1, 4, 1, 5):
        x = torch.rand(3, columns)
        found = op(x)
        assert torch.equal(found, turned(x))
        assert columns == 1 or found.stride() == turned(x).stride()
