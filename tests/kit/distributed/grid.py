"""Calls on a mesh of two dimensions, strided pieces and torch.compile among them; run by torchrun in four processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import opwright as ow
from tests.kit.distributed import ranks

R, S = Replicate(), Shard
Placements = Sequence[Any]


def compare(mesh: Any, function: Callable[..., Any], given: list[Tensor], where: list[Placements]) -> dict[str, Any]:
    plain = [t.clone().requires_grad_() for t in given]
    spread: list[Any] = [
        distribute_tensor(t.detach(), mesh, p).requires_grad_() for t, p in zip(plain, where, strict=True)
    ]
    with CommDebugMode() as mode:  # type: ignore[no-untyped-call]
        out = function(*spread)
    want = function(*plain)
    torch.testing.assert_close(out.full_tensor(), want)
    grads: Any = torch.autograd.grad((out * out).sum(), spread)
    torch.testing.assert_close([g.full_tensor() for g in grads], list(torch.autograd.grad((want * want).sum(), plain)))
    return {"placements": [repr(p) for p in out.placements], "moved": mode.get_total_counts()}


def strided(mesh: Any) -> dict[str, Any]:
    """The parameter of a layer that is cut along both dimensions: in strides, then plainly."""
    torch.manual_seed(3)
    layer = nn.Sequential(ow.nn.Linear(4, 8))
    parallelize_module(layer, mesh["model"], {"0": ColwiseParallel()})
    fully_shard(layer, mesh=mesh["data"])
    weight: Any = next(iter(layer.parameters())).detach()
    with CommDebugMode() as mode:  # type: ignore[no-untyped-call]
        out: Any = ow.sigmoid(weight)
        both: Any = ow.axpby(weight, weight, a=2)
    torch.testing.assert_close(out.full_tensor(), weight.full_tensor().sigmoid())
    torch.testing.assert_close(both.full_tensor(), 3 * weight.full_tensor())
    return {"placements": [repr(p) for p in out.placements], "moved": mode.get_total_counts()}


def compiled(mesh: Any, backend: str) -> dict[str, Any]:
    """A cell, which graphs hold as one call."""

    def step(x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> Tensor:
        h, c = ow.lltm_cell(x, weight, bias, h, c)
        out: Tensor = ow.sigmoid(h) + c
        return out

    sizes = [(8, 4), (9, 7), (9,), (8, 3), (8, 3)]
    rows, whole = [S(0), R], [R, R]
    where: list[Placements] = [rows, whole, whole, rows, rows]
    given = [torch.randn(size) for size in sizes]
    function: Any = torch.compile(step, backend=backend, fullgraph=True)
    plain = [t.clone().requires_grad_() for t in given]
    spread: list[Any] = [
        distribute_tensor(t.detach(), mesh, p).requires_grad_() for t, p in zip(plain, where, strict=True)
    ]
    out, want = function(*spread), step(*plain)
    torch.testing.assert_close(out.full_tensor(), want)
    grads: Any = torch.autograd.grad((out * out).sum(), spread)
    torch.testing.assert_close([g.full_tensor() for g in grads], list(torch.autograd.grad((want * want).sum(), plain)))
    return {"placements": [repr(p) for p in out.placements]}


def refused(mesh: Any) -> dict[str, str]:
    """What raises, on every rank alike."""
    x, weight = torch.randn(4, 4), torch.randn(4, 4)
    found = {}
    ways: dict[str, Callable[[], Any]] = {
        "another mesh": lambda: ow.linear(
            distribute_tensor(x, mesh["data"], [R]), distribute_tensor(weight, mesh["model"], [R])
        ),
        "another mesh, elementwise": lambda: ow.axpby(
            distribute_tensor(x, mesh["data"], [R]), distribute_tensor(weight, mesh["model"], [R])
        ),
        "a plain tensor": lambda: ow.linear(distribute_tensor(x, mesh, [R, R]), weight),
    }
    for name, way in ways.items():
        try:
            way()
            found[name] = "nothing"
        except Exception as e:
            found[name] = f"{type(e).__name__}: {e}"
    dist.barrier()
    return found


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    x, w, b = torch.randn(6, 4), torch.randn(8, 4), torch.randn(8)
    told: dict[str, Any] = {
        "sigmoid": compare(mesh, ow.sigmoid, [x], [[S(0), S(1)]]),
        "sigmoid twice": compare(mesh, ow.sigmoid, [x], [[S(0), S(0)]]),
        "batch and n": compare(mesh, ow.linear, [x, w, b], [[S(0), R], [R, S(0)], [R, S(0)]]),
        "batch and k": compare(mesh, ow.linear, [x, w, b], [[S(0), S(1)], [R, S(1)], [R, R]]),
        "strided": strided(mesh),
        "aot_eager": compiled(mesh, "aot_eager"),
        "inductor": compiled(mesh, "inductor"),
        "refused": refused(mesh),
    }
    if dist.get_rank() == 0:
        print(json.dumps(told))
    ranks.leave()
