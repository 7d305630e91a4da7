"""A declared gradient is the gradient: in eager mode, in compiled graphs, under torch.func, with or without kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import opwright as ow

_numbers = itertools.count()


def straight_through(kernel: bool = False) -> ow.Op[..., Any]:
    """Rounds; its gradient passes where x lies in [-1, 1]."""

    def step(x: Tensor) -> Tensor:
        return x.sign()

    op: ow.Op[..., Any] = ow.op(name=f"step{next(_numbers)}", namespace="declared")(step)

    @op.gradient(surrogate=True)
    def _(grad: Tensor, x: Tensor) -> Tensor:
        return grad * (x.abs() <= 1)

    if kernel:
        op.kernel("cpu")(lambda x: x.sign())
    return op


X = torch.tensor([0.5, 2.0, -0.25])
PASSED = torch.tensor([1.0, 0.0, 1.0])


def eager(op: Callable[..., Any]) -> Tensor:
    x = X.clone().requires_grad_()
    op(x).sum().backward()
    assert x.grad is not None
    return x.grad


def compiled(op: Callable[..., Any]) -> Tensor:
    return eager(torch.compile(lambda x: op(x) * 1, fullgraph=True, backend="aot_eager"))  # type: ignore[misc]


def through_torch_ops(op: Any) -> Tensor:
    return eager(getattr(torch.ops.declared, op.name))


def checkpointed(op: Callable[..., Any]) -> Tensor:
    return eager(lambda x: checkpoint(op, x, use_reentrant=False))


def func_grad(op: Callable[..., Any]) -> Tensor:
    return torch.func.grad(lambda x: op(x).sum())(X)  # type: ignore[no-any-return]


def vmap_of_grad(op: Callable[..., Any]) -> Tensor:
    return torch.func.vmap(torch.func.grad(lambda x: op(x).sum()))(X.expand(2, 3))[1]  # type: ignore[no-any-return]


def grad_of_vmap(op: Callable[..., Any]) -> Tensor:
    return torch.func.grad(lambda x: torch.func.vmap(op)(x).sum())(X)  # type: ignore[no-any-return]


def jacobian(op: Callable[..., Any]) -> Tensor:
    return torch.func.jacrev(op)(X).diagonal()  # type: ignore[no-any-return]


def under_autocast(op: Callable[..., Any]) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return eager(op)


WAYS = (
    eager,
    compiled,
    through_torch_ops,
    checkpointed,
    func_grad,
    vmap_of_grad,
    grad_of_vmap,
    jacobian,
    under_autocast,
)


@pytest.mark.parametrize("kernel", [False, True], ids=["reference", "kernel"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_gradient_that_differs_on_purpose_is_used_everywhere(way: Callable[..., Tensor], kernel: bool) -> None:
    op = straight_through(kernel)
    for _round in range(2):
        torch.testing.assert_close(way(op), PASSED)


@pytest.mark.parametrize("kernel", [False, True], ids=["reference", "kernel"])
def test_forward_mode_has_no_surrogate(kernel: bool) -> None:
    op = straight_through(kernel)
    for _round in range(2):
        with pytest.raises(TypeError, match=r"step\d+: its gradient is declared a surrogate"):
            torch.func.jvp(op, (X,), (X,))
        with forward_ad.dual_level(), pytest.raises(TypeError, match="declared a surrogate"):
            op(forward_ad.make_dual(X, X))
        torch.testing.assert_close(eager(op), PASSED)


def test_the_second_derivative_is_the_formulas() -> None:
    @ow.op(namespace="declared")
    def reversed_square(x: Tensor) -> Tensor:
        return x * x

    @reversed_square.gradient(surrogate=True)
    def _(grad: Tensor, x: Tensor) -> Tensor:
        return -grad * x**3

    x = X.clone().requires_grad_()
    for _round in range(2):
        (g,) = torch.autograd.grad(reversed_square(x).sum(), x, create_graph=True)
        torch.testing.assert_close(g, -(x**3))
        (gg,) = torch.autograd.grad(g.sum(), x)
        torch.testing.assert_close(gg, -3 * x**2)
    twice = torch.func.grad(lambda x: torch.func.grad(lambda x: reversed_square(x).sum())(x).sum())
    torch.testing.assert_close(twice(X), -3 * X**2)
    batched = torch.func.vmap(torch.func.jacrev(torch.func.grad(lambda x: reversed_square(x).sum())))  # type: ignore[misc]
    torch.testing.assert_close(batched(X.expand(2, 3))[0].diagonal(), -3 * X**2)


def test_a_reference_that_leaves_pytorch_trains_with_its_declared_gradient() -> None:
    @ow.op(namespace="declared")
    def through_numpy(x: Tensor, k: float = 2.0) -> Tensor:
        return torch.from_numpy(x.detach().numpy() ** k)

    @through_numpy.gradient
    def _(grad: Tensor, x: Tensor, k: float) -> Tensor:
        return grad * k * x ** (k - 1)

    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    for _round in range(2):
        (g,) = torch.autograd.grad(through_numpy(x, 3.0).sum(), x, create_graph=True)
        torch.testing.assert_close(g, 3 * x**2)
        torch.testing.assert_close(torch.autograd.grad(g.sum(), x)[0], 6 * x)


def test_a_formula_alone_costs_no_fusion() -> None:
    """Compiled graphs hold what reference and formula do, and no call of ours."""
    op = straight_through()
    seen: list[str] = []

    def look(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return torch._functorch.aot_autograd.make_boxed_func(graph.forward)  # type: ignore[attr-defined]

    from torch._dynamo.backends.common import aot_autograd

    backend = aot_autograd(fw_compiler=look)
    torch.testing.assert_close(eager(torch.compile(lambda x: op(x) * 1, fullgraph=True, backend=backend)), PASSED)  # type: ignore[misc]
    assert any("sign" in target for target in seen)
    assert any("abs" in target for target in seen)
    assert not any("declared" in target for target in seen)


def test_lists_options_and_several_outputs_are_followed() -> None:
    @ow.op(namespace="declared")
    def blend(xs: list[Tensor], w: Tensor | None = None, *, k: float = 1.0) -> tuple[Tensor, Tensor]:
        total = sum(xs[1:], xs[0])
        return (total if w is None else total * w) * k, total.detach() * 0 + 1

    @blend.gradient(surrogate=True)
    def _(grad_0: Tensor, grad_1: Tensor | None, xs: list[Tensor], w: Tensor | None, k: float) -> Any:
        return [grad_0 * 10 * k for _ in xs], None if w is None else grad_0 * 100

    def run(call: Callable[..., Any]) -> list[float]:
        xs = [torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)]
        w = torch.ones(2, requires_grad=True)
        call(xs, w, k=2.0)[0].sum().backward()
        call(xs, k=2.0)[0].sum().backward()
        return [t.grad[0].item() for t in (*xs, w) if t.grad is not None]

    plain = run(blend)
    assert plain == [40.0, 40.0, 100.0]
    assert run(torch.compile(lambda xs, w=None, k=1.0: blend(xs, w, k=k), backend="aot_eager", fullgraph=True)) == plain  # type: ignore[misc]
    grads = torch.func.vmap(torch.func.grad(lambda x, w: blend([x, x], w, k=2.0)[0].sum()))(
        torch.ones(3, 2), torch.ones(3, 2)
    )
    assert grads[0][0].item() == 40.0


def test_an_operator_without_a_declared_gradient_stays_transparent() -> None:
    @ow.op(namespace="declared")
    def twice(x: Tensor) -> Tensor:
        return x + x

    assert not twice.opaque
    assert "Add" in type(twice(X.clone().requires_grad_()).grad_fn).__name__


@pytest.mark.parametrize("once", [True, False])
def test_a_gradient_penalty_is_right_or_an_error(once: bool) -> None:
    @ow.op(name=f"penalty{int(once)}", namespace="declared")
    def penalty(x: Tensor) -> Tensor:
        return x**3

    @penalty.saving("square", once=once)
    def _(x: Tensor) -> Any:
        return x**3, x * x

    @penalty.gradient
    def _(grad: Tensor, square: Tensor) -> Tensor:
        return 3 * grad * square

    for _round in range(2):
        x = torch.tensor([2.0], requires_grad=True)
        y = penalty(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        loss = y.sum() + (g**2).sum()
        if once:
            with pytest.raises(RuntimeError, match="penalty1 is declared differentiable once"):
                loss.backward()
        else:
            loss.backward()
            assert x.grad is not None
            assert x.grad.item() == 12 + 2 * 12 * 12  # 3x² + 2·3x²·6x


@pytest.mark.parametrize("layout", ["plain", "transposed"])
def test_gradients_have_the_layout_that_a_declared_fake_promises(layout: str) -> None:
    @ow.op(name=f"declared_layout_{layout}")
    def square(x: Tensor, ws: list[Tensor]) -> Tensor:
        return torch.from_numpy(x.detach().numpy() ** 2)

    @square.fake
    def _(x: Tensor, ws: list[Tensor]) -> Tensor:
        return torch.empty_like(x)

    @square.gradient
    def _(grad: Tensor, x: Tensor, ws: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        return 2 * grad.contiguous() * x.contiguous(), [w.t().contiguous().t() * 0 for w in ws]

    x = torch.rand(3, 5) if layout == "plain" else torch.rand(5, 3).t()
    x.requires_grad_()
    ws = [torch.ones(2, 3)]
    run = torch.compile(lambda x, ws: square(x, ws), fullgraph=True)
    (grad,) = torch.autograd.grad(run(x, ws).sum(), x)
    torch.testing.assert_close(grad, 2 * x.detach())
    ws[0].requires_grad_()
    grads = torch.autograd.grad(run(x, ws).sum(), [x, *ws])
    torch.testing.assert_close(grads, (2 * x.detach(), torch.zeros(2, 3)))
