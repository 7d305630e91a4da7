"""The points that each operator must hold beyond its samples."""

from __future__ import annotations

import re

import pytest
import torch

import opwright as ow


def test_axpby_is_two_x_plus_y_and_three_x_minus_y() -> None:
    x, y = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.tensor([4.0, 5.0, 6.0], requires_grad=True)
    out = ow.axpby(x, y, a=2)
    assert out.tolist() == [6.0, 9.0, 12.0]
    grad = torch.tensor([1.0, 10.0, 100.0])
    gx, gy = torch.autograd.grad(out, (x, y), grad)
    assert (gx.tolist(), gy.tolist()) == ([2.0, 20.0, 200.0], [1.0, 10.0, 100.0])
    assert ow.axpby(x, y, a=3, b=-1).tolist() == [-1.0, 1.0, 3.0]


@pytest.mark.parametrize("a", [2, 2.0, True, 2j])
@pytest.mark.parametrize("dtypes", ["int64 int32", "bfloat16 float32", "bool int8"])
def test_types_promote_exactly_as_torchs_arithmetic(a: complex, dtypes: str) -> None:
    first, second = (getattr(torch, name) for name in dtypes.split())
    x, y = torch.ones(2, 1).to(first), torch.ones(3).to(second)
    try:
        expected = a * x + y
    except NotImplementedError as e:  # torch 2.15 promotes bfloat16 to a complex type that has no arithmetic yet
        for op in (ow.axpby, torch.ops.opwright.axpby):
            with pytest.raises(NotImplementedError, match=re.escape(str(e))):
                op(x, y, a=a)
        return
    for got in (ow.axpby(x, y, a=a), torch.ops.opwright.axpby(x, y, a=a)):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected)
    assert ow.scale(x, a).dtype == (x * a).dtype


def test_sigmoid_passes_gradcheck_in_float64() -> None:
    x = torch.randn(10, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ow.sigmoid, (x,), eps=1e-6)
    assert ow.sigmoid(torch.tensor([0, 1])).dtype == torch.float32


def test_linear_computes_a_gradient_only_where_it_is_needed() -> None:
    x, weight, bias = torch.rand(5, 3), torch.rand(4, 3, requires_grad=True), torch.rand(4)
    ow.linear(x, weight, bias).sum().backward()
    assert weight.grad is not None
    assert x.grad is None
    assert bias.grad is None
    torch.testing.assert_close(ow.linear(x, weight), torch.nn.functional.linear(x, weight))


def test_cube_has_the_right_second_derivative() -> None:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    (first,) = torch.autograd.grad(ow.cube(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert (first.tolist(), second.tolist()) == ([3.0, 12.0], [6.0, -12.0])


def test_every_operator_declares_its_cost() -> None:
    assert ow.axpby.cost_of(torch.ones(4), torch.ones(4)) == ow.Cost(bytes=48, flops=12)
    assert ow.linear.cost_of(torch.ones(2, 3), torch.ones(4, 3)).flops == 48  # type: ignore[union-attr]
    for op in (ow.sigmoid, ow.cube):
        assert op.cost_of(torch.ones(4)).bytes == 32  # type: ignore[union-attr]
    assert ow.scale.cost_of(torch.ones(4), 2) == ow.Cost(bytes=32, flops=4)


def test_none_for_a_tensor_never_reaches_a_kernel() -> None:
    for call in (ow.axpby, torch.ops.opwright.axpby):
        with pytest.raises(TypeError, match="axpby: y must be a Tensor, got None"):
            call(torch.ones(3), None)
