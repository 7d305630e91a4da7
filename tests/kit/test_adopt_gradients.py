"""The gradient of an adopted operator is the original's own, the reference's, or an error; never a silent zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow


def thrice(x: Tensor) -> Tensor:
    return 3 * x


def outside(x: Tensor) -> Tensor:
    """As an extension's function that goes by data_ptr."""
    return torch.from_numpy(x.detach().numpy() * 3)


library = torch.library.Library("adopted_gradients", "DEF")
library.define("outside(Tensor x) -> Tensor")
library.impl("outside", outside, "CPU")

UNRECORDED: dict[str, Any] = {
    "function": outside,
    "operator": torch.ops.adopted_gradients.outside,  # PyTorch warns, and gives nothing
}


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
@pytest.mark.parametrize("kind", UNRECORDED)
def test_what_autograd_does_not_record_is_refused_where_a_gradient_will_be_wanted(kind: str) -> None:
    op = ow.adopt(UNRECORDED[kind], reference=thrice, name=f"adopted_outside_{kind}")
    for _ in range(2):
        assert op(torch.ones(2)).tolist() == [3.0, 3.0]
        with pytest.raises(TypeError, match=r"autograd records nothing of what was adopted.*backward="):
            op(torch.ones(2, requires_grad=True))


@pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")
def test_what_autograd_records_in_part_has_the_references_gradient() -> None:
    op = ow.adopt(lambda x: torch.ops.adopted_gradients.outside(x) + 0, reference=thrice, name="adopted_in_part")
    x = torch.ones(2, requires_grad=True)
    op(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 3.0))  # type: ignore[arg-type]


class Summed(torch.autograd.Function):
    """Takes a list, whose tensors no torch.autograd.Function follows."""

    @staticmethod
    def forward(ctx: Any, xs: list[Tensor], b: Tensor) -> Tensor:
        return 2 * (xs[0] + xs[1]) + b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, grad


def test_the_gradients_of_a_lists_tensors_are_the_references() -> None:
    def summed(xs: list[Tensor], b: Tensor) -> Tensor:
        return 2 * (xs[0] + xs[1]) + b

    op = ow.adopt(Summed, reference=summed, name="adopted_summed")
    x, y, b = (torch.ones(2, requires_grad=True) for _ in range(3))
    op([x, y], b).sum().backward()
    assert [t.grad.tolist() for t in (x, y, b) if t.grad is not None] == [[2.0, 2.0], [2.0, 2.0], [1.0, 1.0]]


def exp(x: Tensor) -> Tensor:
    return x.exp()


def viewed(x: Tensor) -> list[Tensor]:
    out = x.exp()
    return [out, out.view(-1)]


@pytest.mark.parametrize(
    ("forward", "saves", "taken"), [(lambda x: [x.exp()], [], "result"), (viewed, ["flat"], "flat")]
)
def test_a_pair_notices_that_what_its_backward_takes_was_written_to(forward: Any, saves: list[str], taken: str) -> None:
    name = f"adopted_written_{taken}"
    op = ow.adopt(
        forward, backward=lambda grad, y: grad * y, reference=exp, name=name, saves=saves, takes=["grad", taken]
    )
    for _ in range(2):  # recorded in Python, then in C++
        x = torch.ones(2, requires_grad=True)
        y = op(x)
        z = y * 1
        assert torch.equal(torch.autograd.grad(z.sum(), x, retain_graph=True)[0], x.detach().exp())
        with torch.no_grad():
            y.mul_(10)
        with pytest.raises(RuntimeError, match=f"takes {taken}, which has been modified by an inplace operation"):
            z.sum().backward()


def test_a_gradient_that_nobody_wants_is_not_computed() -> None:
    asked = []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            asked.append(ctx.needs_input_grad)
            x, w = ctx.saved_tensors
            return grad * w, grad * x

    def product(x: Tensor, w: Tensor) -> Tensor:
        return x * w

    op = ow.adopt(Product, reference=product, name="adopted_product")
    for _ in range(2):
        op(torch.ones(2, requires_grad=True), torch.ones(2)).sum().backward()
    assert asked == [(True, False)] * 2


def test_an_operator_of_torch_ops_gets_by_name_what_it_takes_by_name_alone() -> None:
    def added(x: Tensor, y: Tensor, *, alpha: float = 1.0) -> Tensor:
        return x + alpha * y

    op = ow.adopt(torch.ops.aten.add.Tensor, reference=added, name="adopted_add")
    x = torch.ones(2, requires_grad=True)
    out = op(x, torch.ones(2), alpha=2.0)
    assert out.tolist() == [3.0, 3.0]
    out.sum().backward()
    assert x.grad is not None


def test_two_results_that_share_memory_get_memory_of_their_own() -> None:
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * x, (2 * x).view(-1)

    def forward(x: Tensor) -> list[Tensor]:
        out = 2 * x
        return [out, out.view(-1)]

    op = ow.adopt(forward, backward=lambda a, b, x: 2 * a + 2 * b, reference=twice, name="adopted_shared")
    first, second = op(torch.ones(2))
    first.add_(1)
    assert second.tolist() == [2.0, 2.0]
