"""Extra results: computed only for a gradient, never differentiated, right in every way of using an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import opwright as ow
from opwright.kit.dispatch import native
from tests.calling import WAYS, Case, differentiable
from tests.ways import COMPILERS, SLOW

calls: list[str] = []


class State(NamedTuple):
    h: Tensor
    c: Tensor


def cell(x: Tensor, weight: Tensor, c: Tensor, *, scale: float = 1.0) -> State:
    gates = torch.tanh(x @ weight.t()) * scale
    new = c + gates.sigmoid() * gates
    return State(new.tanh() * gates, new)


def define(namespace: str, once: bool = False, opaque: bool | None = True) -> ow.Op[..., Any]:
    """A small recurrent cell whose gradient keeps its gates and one of its outputs."""
    op: ow.Op[..., Any] = ow.op(namespace=namespace, opaque=opaque)(cell)

    @op.saving("gates", once=once)
    def _(x: Tensor, weight: Tensor, c: Tensor, scale: float) -> Any:
        calls.append("saving")
        gates = torch.tanh(x @ weight.t()) * scale
        new = c + gates.sigmoid() * gates
        return new.tanh() * gates, new, gates

    @op.gradient
    def _(
        grad_h: Tensor, grad_c: Tensor, x: Tensor, weight: Tensor, c: Tensor, gates: Tensor, scale: float, wanted: Any
    ) -> Any:
        calls.append("gradient")
        new = c + gates.sigmoid() * gates
        d_new = grad_c + grad_h * gates * (1 - new.tanh() ** 2)
        s = gates.sigmoid()
        d_gates = grad_h * new.tanh() + d_new * (s + gates * s * (1 - s))
        d_sum = d_gates * (scale - gates * gates / scale)
        return d_sum @ weight, d_sum.t() @ x, d_new

    @op.samples
    def _(make: ow.Maker) -> Any:
        yield make(4, 3), make(5, 3), make(4, 5)
        yield make(2, 3), make(4, 3), make(2, 4), {"scale": 0.5}

    return op


twice = define("extras_twice")
single = define("extras_once", once=True)


def given() -> tuple[Tensor, ...]:
    make = ow.Maker(torch.float64)
    return tuple(differentiable([make(4, 3), make(5, 3), make(4, 5)]))


def test_the_form_that_saves_is_an_operator() -> None:
    form = twice.saving_form
    assert form is not None
    assert form.schema.startswith("cell_saving(Tensor x, Tensor weight, Tensor c, *, float scale=1.0)")
    assert form.schema.endswith(" -> (Tensor h, Tensor c, Tensor gates)")
    assert form.backward is twice.backward
    assert form.home is twice
    assert "Tensor gates" in twice.backward.schema
    h, c, gates = form(*given())
    torch.testing.assert_close((h, c), tuple(cell(*given())))
    assert gates.shape == (4, 5)


RUNGS = ("forward", "saving", "backward", "backward.backward")


def cases() -> Iterator[Any]:
    for rung, name in product(RUNGS, WAYS):
        slow = name in SLOW or (name in COMPILERS and rung == "backward.backward")
        yield pytest.param(rung, name, id=f"{rung}-{name}", marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("rung", "name"), [*cases()])
def test_every_rung_is_its_reference_in_every_way(rung: str, name: str) -> None:
    rungs = (twice, twice.saving_form, twice.backward, twice.backward.backward)
    op: Any = dict(zip(RUNGS, rungs, strict=True))[rung]
    if (rung, name) == ("backward", "autocast, transformed"):
        pytest.skip(
            "called by itself it is its formula, in autocast's dtype; differentiated, its truth, in the inputs'"
        )
    # func.vmap draws inputs that do not belong to the extras; there the formula itself must be met.
    plain = op.reference if name == "func.vmap" else op.truth
    for sample in op.draw_samples(ow.Maker(torch.float64)):
        case = Case(sample)
        WAYS[name](case.over(op), case.over(plain), case.tensors)


def test_explain_names_the_form_that_saves() -> None:
    shown = str(ow.explain(twice, *given()))
    assert "recorded  reference  cell_saving, for a gradient; cell_saving has no kernel" in shown
    assert "recorded " not in str(ow.explain(twice, *(t.detach() for t in given())))


def test_extras_are_computed_only_for_a_gradient() -> None:
    calls.clear()
    x, weight, c = given()
    with torch.no_grad():
        twice(x, weight, c)
    with torch.inference_mode():
        twice(x, weight, c)
    twice(x.detach(), weight.detach(), c.detach())
    assert calls == []
    twice(x, weight, c).h.sum().backward()
    assert calls == ["saving", "gradient"]


def test_the_second_derivative_is_the_total_one() -> None:
    def run(function: Any) -> list[Tensor]:
        inputs = given()
        h, c = function(*inputs)
        first = torch.autograd.grad((h**2).sum() + (c**3).sum(), inputs, create_graph=True)
        return list(torch.autograd.grad(torch.stack([(g**2).sum() for g in first]).sum(), inputs))

    for got, expected in zip(run(twice), run(cell), strict=True):
        torch.testing.assert_close(got, expected)
    assert gradcheck(twice, given(), check_batched_grad=True, check_forward_ad=True)
    assert gradgradcheck(twice, given(), check_batched_grad=True)


def test_once_keeps_no_more_than_named_and_says_so_when_asked_for_more() -> None:
    x, weight, c = given()
    h, new = single(x, weight, c)

    def total(state: Any) -> Tensor:
        return torch.stack([t.sum() for t in state]).sum()

    first = torch.autograd.grad(total((h, new)), (x, weight, c), create_graph=True)
    torch.testing.assert_close(first, torch.autograd.grad(total(cell(x, weight, c)), (x, weight, c)))
    with pytest.raises(
        TypeError, match="cell_backward_backward: there is no such gradient operator, since cell is declared"
    ):
        torch.autograd.grad(first[0].sum(), x)
    assert not single.backward.has_rung
    with pytest.raises(TypeError, match="cell_backward_backward: there is no such gradient operator"):
        _ = single.backward.backward
    # torch.func differentiates what the reference does, as far as anyone asks.
    hessian = torch.func.hessian(lambda c: single(x.detach(), weight.detach(), c).h.sum())(c.detach())
    expected = torch.func.hessian(lambda c: cell(x.detach(), weight.detach(), c).h.sum())(c.detach())
    torch.testing.assert_close(hessian, expected)


@pytest.mark.parametrize("recorded", ["C++", "Python"])
def test_once_is_told_in_whatever_way_a_second_derivative_is_asked_for(
    recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if recorded == "Python":
        monkeypatch.setattr(native, "available", lambda: "this test forbids it")
    elif native.available() is not None:
        pytest.skip(f"the node: {native.available()}")
    op = define(f"extras_once_{recorded[0]}", once=True)
    asked: list[Callable[[Tensor, Tensor, Tensor], Any]] = [
        lambda loss, x, w: torch.autograd.grad(loss, x),
        lambda loss, x, w: torch.autograd.grad(loss, w, allow_unused=True),
        lambda loss, x, w: loss.backward(inputs=[x]),
        lambda loss, x, w: loss.backward(),
    ]
    for ask in asked:
        x, weight, c = given()
        (first,) = torch.autograd.grad(op(x, weight, c).h.sum(), x, create_graph=True)
        with pytest.raises((TypeError, RuntimeError), match="cell_backward_backward: there is no such gradient"):
            ask((x**2 + first).sum(), x, weight)


def test_a_rung_with_extras_is_never_differentiated_through_its_formula() -> None:
    sample = twice.backward.draw_samples(ow.Maker(torch.float64))[0]
    values = twice.backward.signature.bind(sample.args, sample.kwargs)

    def loss(x: Tensor) -> Tensor:
        total: Tensor = twice.backward(**(values | {"x": x})).grad_weight.square().sum()
        return total

    def plain(x: Tensor) -> Tensor:
        def inner(weight: Tensor) -> Tensor:
            h, c = cell(x, weight, values["c"])
            return torch.sum(h * values["grad_h"]) + torch.sum(c * values["grad_c"])

        total: Tensor = torch.func.grad(inner)(values["weight"]).square().sum()
        return total

    expected = torch.func.grad(plain)(values["x"])
    torch.testing.assert_close(torch.func.grad(loss)(values["x"]), expected)
    x = values["x"].clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(loss(x), x)[0], expected)
    tangent = torch.rand_like(values["x"])
    pushed = torch.func.jvp(loss, (values["x"],), (tangent,))[1]
    torch.testing.assert_close(pushed, (expected * tangent).sum())
    once = single.backward.signature.bind(sample.args, sample.kwargs)
    with pytest.raises(TypeError, match="cell_backward_backward: there is no such gradient operator"):
        torch.func.grad(lambda x: single.backward(**(once | {"x": x})).grad_weight.sum())(values["x"])


def test_without_kernels_a_declared_gradient_takes_its_extras_all_the_same() -> None:
    seen = define("extras_seen", opaque=None)
    calls.clear()
    x, weight, c = given()
    seen(x, weight, c).h.sum().backward()
    assert calls == ["saving", "gradient"]
    calls.clear()
    form = seen.saving_form
    assert form is not None
    form.kernel("cpu")(form.reference)
    assert seen.opaque
    seen(x, weight, c).h.sum().backward()
    assert calls == ["saving", "gradient"]


def test_a_gradient_that_takes_no_extras_computes_none() -> None:
    op: ow.Op[..., Any] = ow.op(namespace="extras_unused", opaque=True)(cell)

    @op.saving("gates")
    def _(x: Tensor, weight: Tensor, c: Tensor, scale: float) -> Any:
        raise AssertionError("nobody asked for it")

    op(*given()).h.sum().backward()


def test_extras_that_make_no_sense_are_refused() -> None:
    with pytest.raises(TypeError, match="cell: name its extra results"):
        twice.saving()
    with pytest.raises(TypeError, match="cell: an extra result cannot be called 'weight'"):
        twice.saving("weight")
    with pytest.raises(TypeError, match="cell_backward: a gradient operator has no extra results"):
        twice.backward.saving("more")
    with pytest.raises(TypeError, match="the function that saves must take the parameters of cell"):
        define("extras_refused").saving("gates")(lambda x: x)

    @ow.op(random=True)
    def drawn_noise(x: Tensor) -> Tensor:
        return x * torch.rand_like(x)

    with pytest.raises(TypeError, match="drawn_noise: it draws random numbers"):
        drawn_noise.saving("mask")
    short = define("extras_short")
    short.saving("gates")(lambda x, weight, c, scale: (x, c))
    short.gradient(lambda grad_h, grad_c, gates: (gates, gates, gates))
    with pytest.raises(TypeError, match="cell: the function that saves must return 3 results"):
        short(*given())


CPU = """
#include <opwright/kernel.h>

Tensor soft_cpu(const Tensor& x) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map([](C x) { return x / (1 + x * x); }, x);
    });
}

std::tuple<Tensor, Tensor> soft_saving_cpu(const Tensor& x) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        Tensor scale = map([](C x) { return 1 / (1 + x * x); }, x);
        return std::tuple<Tensor, Tensor>(map([](C x, C s) { return x * s; }, x, scale), scale);
    });
}

Tensor soft_backward_cpu(const Tensor& grad, const Tensor& scale, const Tensor& x, const Wanted& wanted) {
    return compute(grad, [&](auto zero) {
        using C = decltype(zero);
        return map([](C g, C s) { return g * (s * (2 * s - 1)); }, grad, scale);
    });
}

OPWRIGHT_KERNEL(soft, CPU, soft_cpu);
OPWRIGHT_KERNEL(soft_saving, CPU, soft_saving_cpu);
OPWRIGHT_KERNEL(soft_backward, CPU, soft_backward_cpu);
"""
OPERATOR = """
import torch, opwright as ow

@ow.op
def soft(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + x * x)

@soft.saving("scale")
def _(x):
    scale = 1 / (1 + x * x)
    return x * scale, scale

@soft.gradient
def _(grad, scale):
    return grad * (scale * (2 * scale - 1))

domain = ow.Domain(dtypes=(torch.float32, torch.float64))
soft.kernel_file("cpu.cpp", domain)
soft.saving_form.kernel_file("cpu.cpp", domain)
soft.backward.kernel_file("cpu.cpp", domain)
"""


@pytest.fixture(scope="session")  # a worker may come back to this file
def soft(tmp_path_factory: pytest.TempPathFactory) -> ow.Op[..., Any]:
    folder: Path = tmp_path_factory.mktemp("soft")
    (folder / "op.py").write_text(OPERATOR)
    (folder / "cpu.cpp").write_text(CPU)
    op: ow.Op[..., Any] = ow.load(folder).soft
    return op


def test_a_kernel_computes_the_extras(soft: ow.Op[..., Any]) -> None:
    assert soft.name == "soft"
    ran: list[str] = []
    for op in (soft, soft.saving_form, soft.backward):
        assert op is not None
        for kernel in op.kernels:
            ready = kernel.ready(op)
            assert ready is not None
            ran.append(kernel.name)
    assert ran == ["cpu.cpp"] * 3

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a kernel should have run")

    x = torch.randn(7, dtype=torch.float64, requires_grad=True)
    with pytest.MonkeyPatch.context() as patch:
        for op in (soft, soft.saving_form, soft.backward):
            patch.setattr(op, "run_reference", refuse)
        for _ in range(3):  # the first call is recorded in Python, where C++ takes over
            x.grad = None
            out = soft(x)
            out.sum().backward()
    expected = x / (1 + x * x)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(x.grad, torch.autograd.grad(expected.sum(), x)[0])
    assert gradcheck(soft, x, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(soft, x)


def test_a_surrogate_with_extras_is_the_gradient_of_every_order() -> None:
    @ow.op(name="extras_step")
    def step(x: Tensor) -> Tensor:
        return x.sign()

    @step.saving("near")
    def _(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sign(), (x.abs() <= 1).to(x.dtype)

    @step.gradient(surrogate=True)
    def _(grad: Tensor, near: Tensor) -> Tensor:
        return grad * near

    x, w = torch.tensor([0.5, -3.0]), torch.ones(2, requires_grad=True)
    for _round in range(2):
        assert torch.func.grad(lambda q: step(q).sum())(x).tolist() == [1, 0]
        assert torch.func.jacrev(step)(x).diagonal().tolist() == [1, 0]
        z = x.clone().requires_grad_()
        (first,) = torch.autograd.grad((w * step(z)).sum(), z, create_graph=True)
        assert torch.autograd.grad(first.sum(), w)[0].tolist() == [1, 0]
        step(x)


def test_a_reference_that_pytorch_cannot_follow_is_not_taken_for_a_constant() -> None:
    @ow.op(name="extras_numpy")
    def square(x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() ** 2)

    square.fake(lambda x: torch.empty_like(x))

    @square.saving("twice")
    def _(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(x.detach().numpy() ** 2), torch.from_numpy(2 * x.detach().numpy())

    @square.gradient
    def _(grad: Tensor, twice: Tensor) -> Tensor:
        return grad * twice

    x, w = torch.tensor([0.5, -3.0], requires_grad=True), torch.ones(2, requires_grad=True)
    (first,) = torch.autograd.grad((w * square(x)).sum(), x, create_graph=True)
    assert first.tolist() == [1, -6]
    for each in (x, w):
        with pytest.raises(
            RuntimeError,
            match=r"extras_numpy leaves PyTorch|a function that it cannot see in the reference of extras_numpy",
        ):
            torch.autograd.grad(first.sum(), each, retain_graph=True)
