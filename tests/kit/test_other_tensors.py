"""Tensors of other kinds: what a kernel cannot serve, the reference does."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import opwright as ow
from tests.kit.recording import Define


def test_sparse_tensors_get_the_reference_each_time() -> None:
    for _ in range(3):
        out = ow.scale(torch.eye(3).to_sparse(), 2.0)
        assert out.layout == torch.sparse_coo
        assert out.to_dense().diagonal().tolist() == [2.0] * 3


def test_jagged_tensors_get_the_reference() -> None:
    parts = [torch.randn(2, 4), torch.randn(3, 4)]
    for _ in range(2):
        x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
        out = ow.sigmoid(x)
        torch.testing.assert_close(out.values(), torch.cat(parts).sigmoid())
        out.values().sum().backward()
        assert x.grad is not None
        assert x.grad.shape == x.shape


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_get_the_reference() -> None:
    parts = [torch.randn(2, 4), torch.randn(3, 4)]
    weight = torch.randn(5, 4)
    for _ in range(2):
        x = torch.nested.nested_tensor(parts)
        for found, part in zip(ow.linear(x, weight, None).unbind(), parts, strict=True):
            torch.testing.assert_close(found, part @ weight.t())


class Plus(torch.Tensor):
    """A wrapper that serves PyTorch's own operators and knows no others."""

    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=False)
        made.held = inner
        return made

    def __init__(self, inner: Tensor) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func.namespace not in ("aten", "prim"):
            raise NotImplementedError(str(func))
        plain = tree_map(lambda t: t.held if isinstance(t, Plus) else t, (args, kwargs or {}))
        out = func(*plain[0], **plain[1])
        return tree_map(lambda t: Plus(t) if isinstance(t, Tensor) else t, out)


@pytest.mark.parametrize("way", ["python", "torch.ops"])
def test_a_subclass_without_a_rule_gets_the_reference(way: str) -> None:
    call = ow.sigmoid if way == "python" else torch.ops.opwright.sigmoid
    for _ in range(2):
        out = call(Plus(torch.zeros(3)))
        assert isinstance(out, Plus)
        assert out.held.tolist() == [0.5] * 3  # type: ignore[attr-defined]


def test_a_form_that_saves_gets_a_rule_for_kinds_that_were_met_before(define: Define) -> None:
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    op = define(doubled)
    for _ in range(2):
        op(Plus(torch.ones(2)).requires_grad_())

    op.saving("factor")(lambda x: (x * 2, torch.full_like(x, 2.0)))
    op.gradient(lambda grad, factor: grad * factor)
    x = Plus(torch.ones(2)).requires_grad_()
    out = op(x)
    assert isinstance(out, Plus)
    assert torch.autograd.grad(out, x, Plus(torch.ones(2)))[0].held.tolist() == [2.0, 2.0]  # type: ignore[attr-defined]


DISTRIBUTED = """
import os, torch, opwright as ow
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
spread = lambda t, how: distribute_tensor(t, mesh, [how])
for _ in range(2):
    x, w = torch.randn(4, 3), torch.randn(5, 3)
    dx, dw = spread(x, Shard(0)).requires_grad_(), spread(w, Replicate()).requires_grad_()
    x.requires_grad_(), w.requires_grad_()
    out = ow.sigmoid(ow.linear(dx, dw))
    out.sum().backward()
    torch.sigmoid(torch.nn.functional.linear(x, w)).sum().backward()
    assert isinstance(out, DTensor) and isinstance(dx.grad, DTensor)
    torch.testing.assert_close(dx.grad.full_tensor(), x.grad)
    torch.testing.assert_close(dw.grad.full_tensor(), w.grad)
    assert isinstance(torch.ops.opwright.cube(dx), DTensor)
    try:
        torch.nn.functional.elu(dx)
    except NotImplementedError:
        continue  # before torch 2.11 DTensor has no rule for it
    h, c = ow.lltm_cell(dx, spread(torch.randn(9, 6), Replicate()), spread(torch.randn(9), Replicate()), dx, dx)
    h.sum().backward()
print("held")
dist.destroy_process_group()
"""


def test_distributed_tensors_get_the_reference() -> None:
    done = subprocess.run([sys.executable, "-c", DISTRIBUTED], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert "held" in done.stdout


def test_scripted_modules_call_the_dispatcher() -> None:
    for module, x in ((ow.nn.Linear(3, 2), torch.ones(4, 3)), (ow.nn.Sigmoid(), torch.ones(4))):
        scripted = torch.jit.script(module)
        torch.testing.assert_close(scripted(x), module(x))


def test_arithmetic_on_sparse_tensors_is_that_of_the_plain_function() -> None:
    """PyTorch's own fails below autograd, where a kernel would stand."""

    @ow.op(name="sparse_fold", opaque=True)
    def fold(x: Tensor) -> Tensor:
        return (x - 2 * (x / 2).round()).abs()

    x = torch.tensor([1.5, 0.0, -2.2]).to_sparse()
    for _ in range(2):
        out = fold(x)
        assert out.layout == torch.sparse_coo
        assert torch.equal(out.to_dense(), fold.reference(x).to_dense())
    z = x.clone().requires_grad_()
    assert fold(z).requires_grad
