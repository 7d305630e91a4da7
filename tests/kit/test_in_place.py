"""Operators that write: in-place forms, and buffers updated beside differentiable outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow

IN_PLACE = {
    "axpby_": (lambda x, y: x.mul_(2).add_(y, alpha=-1), lambda x, y: ow.axpby_(x, y, a=2, b=-1)),
    "sigmoid_": (lambda x, y: x.sigmoid_(), lambda x, y: ow.sigmoid_(x)),
    "scale_": (lambda x, y: x.mul_(3), lambda x, y: ow.scale_(x, 3)),
    "cube_": (lambda x, y: x.pow_(3), lambda x, y: ow.cube_(x)),
}


@pytest.fixture(params=IN_PLACE)
def forms(request: pytest.FixtureRequest) -> Any:
    return IN_PLACE[request.param]


def test_in_place_forms_write_and_return_their_argument(forms: Any) -> None:
    native, ours = forms
    x, y = torch.rand(3, 4), torch.rand(4)
    expected = native(x.clone(), y)
    version = x._version
    assert ours(x, y) is x
    assert x._version > version
    torch.testing.assert_close(x, expected)


def test_in_place_forms_differentiate_as_torchs_own(forms: Any) -> None:
    native, ours = forms
    results = []
    for form in (native, ours):
        x = torch.linspace(0.5, 2, 4, dtype=torch.float64, requires_grad=True)
        y = torch.linspace(1, 2, 4, dtype=torch.float64, requires_grad=True)
        inner = x * 1
        out = (form(inner, y) ** 2).sum()
        results.append(torch.autograd.grad(out, (x, y), allow_unused=True))
    for got, expected in zip(results[1], results[0], strict=True):
        assert (got is None or not got.any()) if expected is None else torch.allclose(got, expected)


def test_writing_to_a_leaf_that_requires_a_gradient_is_an_error(forms: Any) -> None:
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        forms[1](torch.ones(3, requires_grad=True), torch.ones(3))


def test_writing_through_a_view_reaches_its_base_and_its_gradient(forms: Any) -> None:
    native, ours = forms
    results = []
    for form in (native, ours):
        x = torch.linspace(0.5, 2, 6, dtype=torch.float64, requires_grad=True)
        base = x * 1
        form(base[::2], torch.ones(3, dtype=torch.float64))
        results.append((base.detach(), torch.autograd.grad((base**2).sum(), x)[0]))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_in_place_forms_compile(forms: Any, backend: str) -> None:
    ours = forms[1]

    def step(x: Tensor, y: Tensor) -> Tensor:
        z = x + 1
        ours(z, y)
        ours(x, y)
        return z * x

    results = []
    for function in (step, torch.compile(step, fullgraph=True, backend=backend)):
        x = torch.linspace(0.5, 2, 4)
        results.append((function(x, torch.ones(4)), x))
    torch.testing.assert_close(results[1], results[0])


def test_torch_ops_reaches_the_in_place_form_and_returns_nothing() -> None:
    x = torch.ones(3)
    version = x._version
    assert torch.ops.opwright.scale_(x, 3) is None
    assert x.tolist() == [3.0, 3.0, 3.0]
    assert x._version > version

    def step(x: Tensor) -> Tensor:
        torch.ops.opwright.scale_(x, 3)
        return x + 1

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert compiled(x).tolist() == [10.0, 10.0, 10.0]
    assert x.tolist() == [9.0, 9.0, 9.0]


def test_a_result_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"axpby_: the result has shape \(2, 3\) and cannot be written into x"):
        ow.axpby_(torch.ones(3), torch.ones(2, 3))
    with pytest.raises(TypeError, match="scale_: the result is float32 and cannot be written into x of type int64"):
        ow.scale_(torch.ones(3, dtype=torch.int64), 0.5)
    whole = torch.tensor([1, 2])
    assert ow.scale_(whole, 2).tolist() == [2, 4]


@ow.op(mutates=("mean",))
def centred(x: Tensor, mean: Tensor | None, *, momentum: float = 0.5) -> Tensor:
    """x less its mean, which `mean` follows."""
    now = x.mean(0)
    if mean is not None:
        mean.lerp_(now.detach(), momentum)
    return x - now


@pytest.mark.parametrize("door", ["python", "torch.ops", "compiled", "compiled torch.ops"])
def test_buffers_are_updated_beside_differentiable_outputs(door: str) -> None:
    call: Any = torch.ops.tests.centred if "torch.ops" in door else centred
    if "compiled" in door:
        opaque = call
        call = torch.compile(lambda *a, **k: opaque(*a, **k), fullgraph=True, backend="aot_eager")
    x = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    mean = torch.zeros(3, dtype=torch.float64)
    out = call(x, mean, momentum=0.25)
    torch.testing.assert_close(mean, x.detach().mean(0) * 0.25)
    got = torch.autograd.grad((out**3).sum(), x)[0]
    expected = torch.autograd.grad(((x - x.mean(0)) ** 3).sum(), x)[0]
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(call(x, None), x - x.mean(0))


def test_a_user_writes_an_in_place_operator_by_its_name() -> None:
    @ow.op
    def halve_(x: Tensor, *, twice: bool = False) -> Tensor:
        x.mul_(0.5)
        return x.mul_(0.5) if twice else x

    x = torch.full((2,), 8.0)
    assert halve_.schema == "halve_(Tensor(a0!) x, *, bool twice=False) -> ()"
    assert halve_(x, twice=True) is x
    assert x.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("call", [ow.axpby_, torch.ops.opwright.axpby_])
def test_arguments_may_be_views_of_one_tensor(call: Any) -> None:
    ow.axpby_.state.fresh = True  # as in a process that has not called it yet
    m = torch.tensor([[1.0, 2.0], [10.0, 20.0]])
    call(m[0], m[1])
    assert m.tolist() == [[11.0, 22.0], [10.0, 20.0]]
    v = torch.ones(2)
    call(v, v)
    assert v.tolist() == [2.0, 2.0]


def test_an_in_place_form_follows_its_operators_gradient() -> None:
    """Also one that is declared after it was recorded in C++."""

    @ow.op(name="follows_later")
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    double.kernel("cpu")(lambda x: x * 2)
    double_ = ow.in_place(double)
    double_.kernel("cpu")(lambda x: x.mul_(2))

    def slope() -> float:
        x = torch.ones(1, requires_grad=True)
        double_(x * 1).sum().backward()
        assert x.grad is not None
        return x.grad.item()

    assert [slope(), slope()] == [2, 2]
    double.gradient(surrogate=True)(lambda grad: grad * 7)
    assert [slope(), slope()] == [7, 7]
    double.gradient(surrogate=True)(lambda grad: grad * 9)
    assert [slope(), slope()] == [9, 9]
