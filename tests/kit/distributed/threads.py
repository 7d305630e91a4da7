"""Ranks that are threads of this process, for calls on DTensors that need no processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import opwright as ow
from opwright.kit.private import dtensors

R, S = Replicate(), Shard


def on_ranks(function: Callable[[int, Any], Any], *sizes: int) -> list[Any]:
    """What a function of rank and mesh gives on each rank."""
    shape = sizes or (2,)
    names = ("data", "model")[: len(shape)]
    with dtensors.simulated_ranks(torch.Size(shape).numel()) as ranks:
        return ranks(lambda rank, group: function(rank, init_device_mesh("cpu", shape, mesh_dim_names=names)))


def spread(t: Tensor, mesh: Any, *placements: Any) -> Any:
    """A tensor as a DTensor, which requires a gradient where it does."""
    return distribute_tensor(t.detach(), mesh, placements).requires_grad_(t.requires_grad)


def whole(t: Any) -> Tensor:
    """What a DTensor is of."""
    joined: Tensor = t.full_tensor() if isinstance(t, DTensor) else t
    return joined.detach()


def expect_right(op: Any, given: list[Tensor], where: list[Any], **options: Any) -> list[str]:
    """Results and gradients of a call on DTensors are those of plain tensors; gives who decided, on each rank."""
    plain = [t.clone().requires_grad_(t.is_floating_point()) for t in given]
    want = _flat(op(*plain, **options))
    incoming = [torch.randn(t.shape) for t in want]
    followed = [t for t in plain if t.requires_grad]
    expected = torch.autograd.grad(want, followed, incoming)

    def call(rank: int, mesh: Any) -> str:
        pieces = [spread(t, mesh, p) for t, p in zip(plain, where, strict=True)]
        got = _flat(op(*pieces, **options))
        torch.testing.assert_close([whole(t) for t in got], [t.detach() for t in want])
        sent = [spread(g, mesh, R) for g in incoming]
        grads = torch.autograd.grad(got, [t for t in pieces if t.requires_grad], sent)
        torch.testing.assert_close([whole(g) for g in grads], list(expected))
        return decided(op, *pieces, **options)

    return on_ranks(call)


def _flat(out: Any) -> list[Any]:
    return [t for t in (out if isinstance(out, tuple) else [out]) if t is not None]


def decided(op: Any, *given: Any, **options: Any) -> str:
    """Who says where DTensors must be, by explain."""
    return next(s.runs for s in ow.explain(op, *given, **options).steps if s.name == "sharding")


def with_kernel(name: str, function: Callable[..., Any]) -> Any:
    """An operator with a kernel, which DTensor does not see through."""
    op: Any = ow.op(name=name)(function)
    op.kernel("cpu")(function)
    return op
