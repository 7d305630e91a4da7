"""The casts that autocast makes for operators that declare them are kept as those of PyTorch's own operators are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import opwright as ow
from opwright.kit.dispatch import native

pytestmark = pytest.mark.skipif(native.available() is not None, reason="the cache is reached by the package's own C++")


def kept(step: Callable[..., Any], weights: list[Tensor], steps: int, **options: Any) -> set[int]:
    """The storages that the backward of some steps keeps, the parameters' own aside."""
    found: dict[int, Any] = {}  # held, so that none takes the place of another

    def pack(t: Tensor) -> Tensor:
        found[t.untyped_storage().data_ptr()] = t.untyped_storage()
        return t

    x, h = torch.randn(2, 8), torch.zeros(2, 8)
    c = h
    with torch.autocast("cpu", torch.bfloat16, **options), saved_tensors_hooks(pack, lambda t: t):
        for _ in range(steps):
            h, c = step(x, *weights, h, c)
    (h.float().sum() + c.float().sum()).backward()
    large = weights[0].numel() * 2
    return {where for where, storage in found.items() if storage.nbytes() == large}


def parameters() -> list[Tensor]:
    cell = ow.nn.LLTMCell(8, 8)
    return [cell.weight, cell.bias] if cell.bias is not None else []


def test_a_weight_is_cast_once_however_many_steps_there_are() -> None:
    for _ in range(2):
        assert len(kept(ow.lltm_cell, parameters(), 20)) == 1


def test_without_the_cache_each_step_casts_anew() -> None:
    assert len(kept(ow.lltm_cell, parameters(), 5, cache_enabled=False)) == 5


def test_what_is_no_leaf_is_cast_anew() -> None:
    weight, bias = parameters()
    assert len(kept(ow.lltm_cell, [weight * 1, bias], 5)) == 5


def test_the_cache_is_pytorchs_own_and_ends_with_the_outermost_autocast() -> None:
    weight, bias = parameters()
    x, h = torch.randn(2, 8), torch.zeros(2, 8)

    def cast() -> Any:
        node: Any = ow.lltm_cell(x, weight, bias, h, h)[0].grad_fn
        found = [f for f, _ in node.next_functions if f is not None]
        return found[0].metadata.setdefault("mark", torch.zeros(()))  # one object for one node

    with torch.autocast("cpu", torch.bfloat16):
        first = cast()
        with torch.autocast("cpu", torch.bfloat16):
            assert cast() is first
        assert cast() is first
    with torch.autocast("cpu", torch.bfloat16):
        assert cast() is not first


def test_gradients_add_up_over_steps() -> None:
    weight, bias = parameters()
    found: list[Tensor] = []
    for options in ({}, {"cache_enabled": False}):
        torch.manual_seed(1)
        weight.grad = None
        kept(ow.lltm_cell, [weight, bias], 3, **options)
        assert weight.grad is not None
        found.append(weight.grad)
    size = float(found[1].abs().max())
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=size * 2**-6)  # summed in bfloat16, or in float32


def test_a_step_without_gradients_takes_none_from_the_next() -> None:
    weight, bias = parameters()
    x, h = torch.randn(2, 8), torch.zeros(2, 8)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            ow.lltm_cell(x, weight, bias, h, h)
        out = ow.lltm_cell(x, weight, bias, h, h)[0]
    out.float().sum().backward()
    assert weight.grad is not None
    assert weight.grad.any()


class Step(torch.nn.Module):
    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.cell, self.inside = ow.nn.LLTMCell(8, 8), inside

    def forward(self, x: Tensor) -> Tensor:
        if not self.inside:
            return self.cell(x)[0]  # type: ignore[no-any-return]
        with torch.autocast("cpu", torch.bfloat16):
            return self.cell(x)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("where", ["around", "inside", "exported"])
def test_graphs_cast_as_calls_do(where: str) -> None:
    step = Step(inside=where != "around")
    torch._dynamo.reset()
    taken: Any = torch.compile(step, backend="aot_eager", fullgraph=True)
    if where == "exported":
        taken = torch.export.export(step, (torch.randn(2, 8),)).module()
    for _ in range(2):
        x, found = torch.randn(2, 8), []
        for function in (step, taken):
            with torch.autocast("cpu", torch.bfloat16, enabled=where == "around"):
                out = function(x)
            found.append((out, *torch.autograd.grad(out.float().square().sum(), list(function.parameters()))))
        assert not torch.equal(found[0][0], step.cell(x)[0]), "nothing was cast"
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=2**-6, atol=2**-8)


def test_transforms_and_checkpoints_see_the_same_casts() -> None:
    torch.manual_seed(0)
    weight, cell = torch.randn(4, 8), ow.nn.LLTMCell(4, 3)  # which declares its casts, and the others do not

    def step(x: Tensor) -> Tensor:
        return cell(ow.cube(ow.sigmoid(ow.linear(x, weight))))[0]  # type: ignore[no-any-return]

    x = torch.randn(5, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        (grad,) = torch.autograd.grad(step(x).sum(), x)
        assert torch.func.vjp(step, x.detach())[0].dtype == step(x).dtype
        for found in (
            torch.func.grad(lambda t: step(t).sum())(x.detach()),
            torch.func.vmap(torch.func.grad(lambda t: step(t[None]).sum()))(x.detach()),
            torch.autograd.grad(checkpoint(step, x, use_reentrant=False).sum(), x)[0],
        ):
            torch.testing.assert_close(found, grad, rtol=2**-5, atol=2**-6 * float(grad.abs().max()))
