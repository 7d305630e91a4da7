"""Autograd of opaque operators has the semantics of PyTorch's own, recorded in C++ and in Python alike."""

from __future__ import annotations

import os
import shutil
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from opwright.kit.dispatch import native, short
from tests.kit.recording import Define, a_product, a_squash, pair, product, squash


@pytest.mark.skipif(os.environ.get("OPWRIGHT_NATIVE") == "0", reason="OPWRIGHT_NATIVE=0 forbids the node")
@pytest.mark.skipif(shutil.which("c++") is None and "CXX" not in os.environ, reason="there is no compiler")
def test_the_node_is_built_where_it_can_be() -> None:
    assert native.available() is None, "make setup builds it; without it half of these tests are skipped"
    assert short.look() in (None, "Python's headers are missing")


def test_the_graph_holds_one_node_named_after_the_operator(define: Define) -> None:
    x, y = pair()
    out = a_product(define)(x, y)
    assert out.grad_fn is not None
    assert out.grad_fn.name() in ("ProductBackward", "_NodeBackward")
    assert len(out.grad_fn.next_functions) == 2 or out.grad_fn.name() == "_NodeBackward"


def test_only_gradients_that_are_asked_for_are_computed(define: Define) -> None:
    asked: list[list[bool]] = []
    op = a_product(define, asked)
    x, y = pair()
    torch.autograd.grad(op(x, y).sum(), x)
    op(x.detach(), y).sum().backward()
    op(x, y).sum().backward(inputs=[y])
    if native.available() is None:
        assert asked == [[True, False], [False, True], [False, True]]
    else:  # torch.autograd.Function knows what requires a gradient, not what this backward is asked for
        assert asked == [[True, True], [False, True], [True, True]]


def test_saved_tensor_hooks_see_what_is_kept(define: Define) -> None:
    packed: list[Tensor] = []
    op, squashed = a_product(define), a_squash(define)

    def pack(t: Tensor) -> int:
        packed.append(t.detach().clone())
        return len(packed) - 1

    x, y = pair()
    with saved_tensors_hooks(pack, lambda i: packed[i]):
        out = squashed(op(x, y))
    assert [p.tolist() for p in packed] == [x.tolist(), y.tolist(), out.tolist()]
    got = torch.autograd.grad(out.sum(), (x, y))
    expected = torch.autograd.grad(torch.sigmoid(x * y).sum(), (x, y))
    torch.testing.assert_close(got, expected)
    with torch.autograd.graph.save_on_cpu():
        out = op(x, y)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), (x, y)), (y.detach(), x.detach()))


def test_what_no_wanted_gradient_reads_is_not_kept(define: Define) -> None:
    kept: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        kept.append(t)
        return t

    op = define(product, torch.ones(1), torch.ones(1))

    @op.gradient(needs={"x": ["y"], "y": ["x"]})
    def _(grad: Tensor, x: Tensor, y: Tensor, wanted: list[bool]) -> Any:
        return (grad * y if wanted[0] else None), (grad * x if wanted[1] else None)

    x, y = pair()
    for args, expected in (((x, y.detach()), [y]), ((x.detach(), y), [x]), ((x, y), [x, y])):
        kept.clear()
        with saved_tensors_hooks(pack, lambda t: t):
            out = op(*args)
        assert [k.tolist() for k in kept] == [e.tolist() for e in expected]
        watched = [t for t in args if t.requires_grad]
        found = torch.autograd.grad(out.sum(), watched, create_graph=True)
        torch.testing.assert_close(found, torch.autograd.grad((args[0] * args[1]).sum(), watched))
    wrong = define(product, torch.ones(1), torch.ones(1))
    wrong.gradient(needs={"x": [], "y": []})(lambda grad, x, y: (grad * y, grad * x))
    assert torch.autograd.grad(wrong(x, y.detach()).sum(), x)[0].isnan().all()  # loud, where memory would be anything
    with pytest.raises(TypeError, match="product: needs must name the inputs that have gradients"):
        wrong.gradient(needs={"x": []})(lambda grad, x: (grad, grad))
    with pytest.raises(TypeError, match="product: needs names 'y', which is no tensor that its gradient saves"):
        wrong.gradient(needs={"x": ["y"], "y": []})(lambda grad, x: (grad, grad))


def test_what_stands_in_for_it_is_made_once(define: Define) -> None:
    seen: list[Tensor] = []
    op = define(product, torch.ones(1), torch.ones(1))

    @op.gradient(needs={"x": ["y"], "y": ["x"]})
    def _(grad: Tensor, x: Tensor, y: Tensor, wanted: list[bool]) -> Any:
        seen.append(x)
        return (grad * y if wanted[0] else None), None

    for size in (3, 5):
        x = torch.rand(2, size, dtype=torch.float64, requires_grad=True)
        out, grad = op(x, torch.rand(2, size, dtype=torch.float64)), torch.rand(2, size, dtype=torch.float64)
        with torch.profiler.profile() as profile:
            torch.autograd.grad(out, x, grad)
    assert [tuple(t.shape) for t in seen] == [(2, 3), (2, 5)]
    assert all(t.stride() == (0, 0) and t.isnan().all() and not t.is_inference() for t in seen)
    if native.available() is None:  # on a GPU to fill one is a launch
        assert seen[0].data_ptr() == seen[1].data_ptr()
        assert not {"aten::full", "aten::fill_", "aten::expand"} & {e.name for e in profile.events() or []}


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_recompute(define: Define, reentrant: bool) -> None:
    op, squashed = a_product(define), a_squash(define)
    x, y = pair()
    out = checkpoint(lambda x, y: squashed(op(x, y)), x, y, use_reentrant=reentrant)
    out.sum().backward()
    torch.testing.assert_close((x.grad, y.grad), torch.autograd.grad(torch.sigmoid(x * y).sum(), (x, y)))


def test_the_graph_is_freed_unless_it_is_retained(define: Define) -> None:
    x, y = pair()
    for op, args in ((a_product(define), (x, y)), (a_squash(define), (x,))):
        out = op(*args).sum()
        first = torch.autograd.grad(out, args, retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(out, args), first)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(out, args)


def test_derivatives_of_every_order(define: Define) -> None:
    def third(op: Any) -> Tensor:
        x, y = torch.tensor(0.3, dtype=torch.float64, requires_grad=True), torch.tensor(0.7, dtype=torch.float64)
        value: Tensor = op(x)
        for _ in range(3):
            (value,) = torch.autograd.grad(value, x, create_graph=True)
        return value * y

    torch.testing.assert_close(third(a_squash(define)), third(torch.sigmoid))
    x, y = pair()
    op = a_product(define)
    assert torch.autograd.gradcheck(op, (x, y), check_batched_grad=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(op, (x, y), check_batched_grad=True, check_fwd_over_rev=True)


def test_anomaly_mode_names_the_line_of_the_call(define: Define) -> None:
    op = define(squash, torch.ones(1))

    @op.gradient
    def _(grad: Tensor, result: Tensor) -> Tensor:
        return grad * float("nan")

    x = torch.ones(2, requires_grad=True)
    with warnings.catch_warnings(record=True) as said, torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("always")
        out = op(x)  # the line that anomaly mode names
        with pytest.raises(RuntimeError, match="returned nan values in its"):
            out.sum().backward()
    assert any("the line that anomaly mode names" in str(w.message) for w in said)


def test_what_was_changed_in_place_is_noticed(define: Define) -> None:
    op, squashed = a_product(define), a_squash(define)
    x, y = pair()
    inner = x * 1
    out = op(inner, y)
    inner.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    out = squashed(x)
    out.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    base = x * 1
    out = op(base[:2], y[:2])
    base.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_writing_to_a_result_that_is_not_kept_is_right(define: Define) -> None:
    x, y = pair()
    op = a_product(define)
    out = op(x, y)
    out[1:].mul_(3)
    got = torch.autograd.grad(out.sum(), x)[0]
    torch.testing.assert_close(got, y.detach() * torch.tensor([1.0, 3.0, 3.0], dtype=torch.float64))
    plain = op(x.detach(), y.detach())
    plain.add_(x)  # a result without history takes one up
    assert plain.requires_grad


def test_hooks_and_retained_gradients(define: Define) -> None:
    op = a_product(define)
    x, y = pair()
    out = op(x, y)
    seen: list[str] = []
    out.retain_grad()
    out.register_hook(lambda g: seen.append("tensor"))
    assert out.grad_fn is not None
    out.grad_fn.register_prehook(lambda grads: seen.append("before"))  # type: ignore[arg-type]
    out.grad_fn.register_hook(lambda given, came: seen.append("after"))
    x.register_post_accumulate_grad_hook(lambda t: seen.append("accumulated"))
    out.sum().backward()
    assert seen == ["tensor", "before", "after", "accumulated"]
    assert out.grad is not None


def test_what_was_recorded_keeps_the_gradient_it_was_recorded_with(define: Define) -> None:
    op = define(squash, torch.ones(1))
    x = torch.ones(3, requires_grad=True)
    formulas: list[Any] = [
        lambda grad: grad * 5,
        lambda grad, x: grad * 7 + 0 * x,
        lambda grad, result: grad * 9 + 0 * result,
    ]
    recorded = []
    for formula in formulas:
        op.gradient(formula)
        recorded.append(op(x).sum())
    assert [torch.autograd.grad(out, x)[0].tolist() for out in recorded] == [[5] * 3, [7] * 3, [9] * 3]
