"""Every derivative is an operator, and each rung is right or says that it is missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import opwright as ow
from opwright.kit.derive import derive
from opwright.kit.spec.values import tensors
from tests.calling import Case, differentiable
from tests.library import DOORS, FUNCTIONAL, LONG, opaque_twin


@pytest.mark.parametrize(
    ("op", "door"),
    [
        pytest.param(op, door, id=f"{op.name}-{door}", marks=[pytest.mark.slow] if slow else [])
        for op in FUNCTIONAL
        for door in DOORS
        for slow in [op is ow.lltm or (op.name in LONG and (op.name, door) != ("spmm", "python"))]
    ],
)
def test_gradcheck_with_all_its_options(op: ow.Op[..., Any], door: str) -> None:
    for dtype in (torch.float64, torch.complex128):
        for sample in op.draw_samples(ow.Maker(dtype)):
            case = Case(sample)
            function, inputs = case.over(DOORS[door](op)), tuple(_followed(op, case))
            assert gradcheck(
                function, inputs, check_undefined_grad=True, check_batched_grad=True, check_forward_ad=True,
                check_batched_forward_grad=True, check_grad_dtypes=True,
            )  # fmt: skip
            assert gradgradcheck(function, inputs, check_undefined_grad=True, check_batched_grad=True)


def _followed(op: ow.Op[..., Any], case: Case) -> list[Tensor]:
    """The tensors of a call, those that have a gradient as leaves: running statistics are declared without one."""
    names = {p.name for p in op.signature.differentiable_inputs}
    given = [
        *zip((p.name for p in op.signature.parameters), case.sample.args, strict=False),
        *case.sample.kwargs.items(),
    ]
    followed = [name in names for name, value in given for _ in tensors(value)]
    leaves = differentiable(case.tensors)
    return [leaf if follow else leaf.detach() for leaf, follow in zip(leaves, followed, strict=True)]


@pytest.mark.parametrize("op", FUNCTIONAL, ids=lambda op: op.name)
def test_the_declared_gradient_is_the_derived_one(op: ow.Op[..., Any]) -> None:
    derived = derive.rung_above(op.name, op.signature, op.reference, None, op.random)
    assert isinstance(derived, derive.Rung)
    assert op.has_declared_gradient
    for dtype in (torch.float64, torch.complex128, torch.float32):
        for sample in op.draw_samples(ow.Maker(dtype)):
            form, rung = op.recorded_form, op.derivation
            out = form(*sample.args, **sample.kwargs)
            outputs = (out,) if form.signature.single else tuple(out)
            results = zip(rung.grads, op.signature.differentiable_outputs, strict=True)
            grads = {name: None if outputs[i] is None else torch.rand_like(outputs[i]) for name, i in results}
            values = op.signature.bind(sample.args, sample.kwargs)
            saved = {name: values[name] for name in rung.inputs}
            saved |= {name: outputs[i] for name, i in rung.outputs.items()}
            got = op.backward(**grads, **saved)
            expected = derived.reference(**grads, **values)
            for g, e in zip(got, expected, strict=True):
                assert (g is None) == (e is None)
                if g is not None:
                    torch.testing.assert_close(g, e)


def _learns(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_leaf and (value.is_floating_point() or value.is_complex())


@pytest.mark.parametrize(
    "op", [pytest.param(op, id=op.name, marks=[pytest.mark.slow] if op.name in LONG else []) for op in FUNCTIONAL]
)
def test_opcheck_finds_nothing(op: ow.Op[..., Any]) -> None:
    for door in (op, opaque_twin(op)):
        for rung in (door, door.backward):
            for sample in rung.draw_samples(ow.Maker(torch.float64))[:2]:
                args = [t.requires_grad_() if _learns(t) else t for t in sample.args]
                torch.library.opcheck(rung.overload, tuple(args), sample.kwargs)


def test_only_wanted_gradients_are_computed() -> None:
    asked: list[list[bool]] = []

    @ow.op(opaque=True)
    def product(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @product.gradient
    def _(grad: Tensor, x: Tensor, y: Tensor, wanted: list[bool]) -> Any:
        asked.append(wanted)
        return (grad * y if wanted[0] else None), (grad * x if wanted[1] else None)

    x, y = torch.ones(2, requires_grad=True), torch.full((2,), 3.0)
    product(x, y).sum().backward()
    assert asked == [[True, False]]
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]


def test_a_rung_returns_none_for_what_is_not_wanted() -> None:
    grad, x, weight = torch.ones(5, 4), torch.ones(5, 3), torch.ones(4, 3)
    for op in (ow.linear, opaque_twin(ow.linear)):
        out = op.backward(grad, x, weight, None, wanted=[False, True, True])
        assert out.grad_x is None
        assert out.grad_bias is None
        assert out.grad_weight.shape == (4, 3)
        with pytest.raises(TypeError, match="linear_backward: wanted must be a list of 3 bools or None"):
            op.backward(grad, x, weight, None, wanted=[True])
    with pytest.raises((TypeError, ValueError, RuntimeError), match="wanted"):
        torch.ops.opwright.linear_backward(grad, x, weight, None, wanted=[True])


def test_an_undefined_gradient_stays_undefined() -> None:
    calls: list[str] = []

    @ow.op(opaque=True)
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, y * 3

    @both.gradient
    def _(grad_0: Tensor, grad_1: Tensor) -> Any:
        calls.append("ran")
        assert grad_0.abs().sum() == 0  # absent where the other is there: zeros
        return grad_0 * 2, grad_1 * 3

    class Undefined(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return None

    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    second = both(x, y)[1]
    second.sum().backward()
    assert calls == ["ran"]
    a = both(x, y)[0]
    x.grad = y.grad = None
    Undefined.apply(a).sum().backward()  # type: ignore[no-untyped-call]
    assert calls == ["ran"]
    assert x.grad is None


def test_derivatives_go_as_far_as_anyone_asks() -> None:
    for op in (ow.cube, opaque_twin(ow.cube)):
        x = torch.tensor([2.0, -1.0], dtype=torch.float64, requires_grad=True)
        value = op(x)
        for expected in ([12.0, 3.0], [12.0, -6.0], [6.0, 6.0]):
            value = torch.autograd.grad(value.sum(), x, create_graph=True)[0]
            assert value.tolist() == expected


@pytest.mark.parametrize("opaque", [True, None])
def test_a_rung_with_too_many_arguments_is_recorded_step_by_step(opaque: bool | None) -> None:
    many = 20

    @ow.op(opaque=opaque)
    def product_of_many(
        a0: Tensor, a1: Tensor, a2: Tensor, a3: Tensor, a4: Tensor, a5: Tensor, a6: Tensor, a7: Tensor, a8: Tensor,
        a9: Tensor, b0: Tensor, b1: Tensor, b2: Tensor, b3: Tensor, b4: Tensor, b5: Tensor, b6: Tensor, b7: Tensor,
        b8: Tensor, b9: Tensor,
    ) -> Tensor:  # fmt: skip
        return (a0 * a1 * a2 * a3 * a4 * a5 * a6 * a7 * a8 * a9) * (b0 * b1 * b2 * b3 * b4 * b5 * b6 * b7 * b8 * b9)

    assert product_of_many.backward.has_rung  # 22 arguments, 43 above it, and 65 would be next
    assert not product_of_many.backward.backward.has_rung
    with pytest.raises(TypeError, match="it would take 65 arguments, and an operator takes at most 64"):
        _ = product_of_many.backward.backward.backward
    inputs = [torch.rand(3, dtype=torch.float64).add(0.5).requires_grad_() for _ in range(many)]

    def fourth(function: Any) -> Tensor:
        found = function(*inputs)
        for _ in range(4):
            found = torch.stack(torch.autograd.grad(found.sum(), inputs, create_graph=True)).square()
        return found  # type: ignore[no-any-return]

    torch.testing.assert_close(fourth(product_of_many), fourth(product_of_many.reference))


def test_declared_nondifferentiable_tensors_get_no_gradient() -> None:
    for opaque in (False, True):

        @ow.op(opaque=opaque, nondifferentiable=("mask", 1), namespace=f"fixed_{opaque}")
        def masked(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
            return x * mask, x.sum() + mask.sum()

        x, mask = torch.ones(2, requires_grad=True), torch.full((2,), 2.0, requires_grad=True)
        out, total = masked(x, mask)
        assert not total.requires_grad
        out.sum().backward()
        assert mask.grad is None
        assert x.grad is not None
        assert x.grad.tolist() == [2.0, 2.0]
        assert masked.backward.schema.endswith("-> Tensor grad_x")


def test_an_integer_result_or_input_has_no_gradient() -> None:
    @ow.op(opaque=True)
    def take(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        return x[index], index + 1

    x = torch.rand(4, dtype=torch.float64, requires_grad=True)
    values, shifted = take(x, torch.tensor([2, 0]))
    assert shifted.dtype == torch.int64
    assert not shifted.requires_grad
    values.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 0.0, 1.0, 0.0]


def test_an_operator_without_derivative_says_so() -> None:
    @ow.op
    def rounded(x: Tensor) -> tuple[Tensor, ...]:
        return (x.round().long(),)

    @ow.op(nondifferentiable=("x",))
    def fixed(x: Tensor) -> Tensor:
        return x * 2

    with pytest.raises(TypeError, match="fixed: it has no derivative"):
        _ = fixed.backward
    assert not fixed(torch.ones(1, requires_grad=True)).requires_grad


def test_a_gradient_that_takes_an_unknown_name_is_refused() -> None:
    @ow.op
    def some(x: Tensor) -> Tensor:
        return x * 2

    with pytest.raises(TypeError, match="some: its gradient takes 'z', which is neither an incoming gradient"):

        @some.gradient
        def _(grad: Tensor, z: Tensor) -> Tensor:
            return grad

    with pytest.raises(TypeError, match="some: its gradient must take the incoming gradient 'grad'"):

        @some.gradient
        def _(x: Tensor) -> Tensor:
            return x

    @some.gradient
    def _(grad: Tensor) -> Any:
        return grad, grad

    with pytest.raises(TypeError, match="some: its gradient returned 2 results; it must return one for each"):
        some.backward(torch.ones(1))


def test_a_gradient_may_be_the_one_that_came_in() -> None:
    @ow.op(opaque=True)
    def shifted(x: Tensor) -> Tensor:
        return x + 1

    @shifted.gradient
    def _(grad: Tensor) -> Tensor:
        return grad

    x = torch.ones(2, requires_grad=True)
    grad = torch.full((2,), 5.0)
    shifted(x).backward(grad)
    assert x.grad is not None
    assert x.grad.tolist() == [5.0, 5.0]
    assert torch.ops.tests.shifted_backward(grad).data_ptr() != grad.data_ptr()


def test_a_rung_that_passes_a_gradient_on_copies_it() -> None:
    @ow.op
    def shifted(x: Tensor, by: Tensor) -> Tensor:
        return x + by

    grad = torch.rand(3, requires_grad=True)
    for rung in (shifted.backward, torch.ops.tests.shifted_backward):
        with torch.no_grad():
            grads = rung(grad, torch.rand(3), torch.rand(3))
        assert not any(g.requires_grad for g in grads)
        assert len({t.untyped_storage().data_ptr() for t in (grad, *grads)}) == 3


def test_random_operators_record_through_their_reference_and_have_no_derived_rung() -> None:
    @ow.op(random=True, opaque=True)
    def noisy(x: Tensor) -> Tensor:
        return x * torch.rand_like(x)

    x = torch.ones(8, requires_grad=True)
    out = noisy(x)
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, out.detach())
    with pytest.raises(TypeError, match="noisy_backward: it cannot be derived, since the reference of noisy draws"):
        _ = noisy.backward
    assert torch.Tag.nondeterministic_seeded in noisy.overload.tags


def test_what_the_sigmoid_keeps_is_its_output() -> None:
    kept: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        kept.append(t)
        return t

    twin = opaque_twin(ow.sigmoid)
    x = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = twin(x)
    assert len(kept) == 1
    torch.testing.assert_close(kept[0], out)
    out.sum().backward()


def test_a_changed_saved_tensor_is_noticed() -> None:
    twin = opaque_twin(ow.cube)
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    out = twin(y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_second_backward_is_an_error() -> None:
    x = torch.ones(3, requires_grad=True)
    out = opaque_twin(ow.cube)(x).sum()
    out.backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_a_rung_may_be_made_while_dynamo_traces() -> None:
    @ow.op(namespace="ladder_traced")
    def joined(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat((x, y), 1)

    compiled: Any = torch.compile(lambda *args: joined.backward(*args), fullgraph=True, backend="aot_eager")
    grad, x, y = torch.rand(2, 7), torch.rand(2, 3), torch.rand(2, 4)
    for got, part in zip(compiled(grad, x, y), grad.split((3, 4), 1), strict=True):
        assert torch.equal(got, part)
        assert got.is_contiguous()
        assert got.untyped_storage().nbytes() == got.nbytes


@pytest.mark.parametrize("way", ["plain", "opaque", "compiled"])
def test_results_of_a_rung_are_dense_memory_of_their_own(way: str) -> None:
    @ow.op(namespace=f"ladder_{way}", opaque=way == "opaque")
    def summed(x: Tensor, y: Tensor) -> Tensor:
        return x.sum() + torch.cat((y, x), 1)[:, 1:].sum()

    run: Any = torch.compile(summed.backward, fullgraph=True, backend="aot_eager") if way == "compiled" else None
    grad, x, y = torch.tensor(2.0), torch.rand(4, 3), torch.rand(4, 5)
    got = (run or summed.backward)(grad, x, y)
    torch.testing.assert_close(got, (torch.full((4, 3), 4.0), torch.tensor([[0.0, 2, 2, 2, 2]] * 4)))
    assert [t.stride() for t in got] == [(3, 1), (5, 1)]
    assert [t.untyped_storage().nbytes() for t in got] == [t.nbytes for t in got]


def test_gradients_given_as_a_tuple_are_memory_of_their_own() -> None:
    @ow.op(namespace="ladder_tuples", opaque=True)
    def total(xs: list[Tensor]) -> Tensor:
        return torch.stack(xs).sum(0)

    @total.gradient
    def _(grad: Tensor, xs: list[Tensor]) -> Any:
        return tuple(grad for _ in xs)

    grad = torch.ones(3)
    [got] = total.backward(grad, [torch.rand(3), torch.rand(3)])
    assert len({t.untyped_storage().data_ptr() for t in (grad, *got)}) == 3
