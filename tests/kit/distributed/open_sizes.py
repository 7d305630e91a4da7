"""Operators on DTensors whose sizes torch.compile leaves open; run by torchrun.

For each call, in turn with others of other sizes: where the result is. Values and gradients must be right on all ranks.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import opwright as ow
from tests.kit.distributed import ranks
from tests.kit.distributed.threads import with_kernel

R, S = Replicate(), Shard


def largest(x: Tensor) -> Tensor:
    return x.amax(0)  # of no rows there is none, and PyTorch's rule for it fails on the device that has none


def two_rows(x: Tensor) -> Tensor:
    ow.require(x.shape[0] >= 2, "x must have two rows, got {x.shape}")
    return torch.tanh(x)


def softened(x: Tensor) -> Tensor:
    return torch.tanh(x.softmax(1))


def products(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(1)


def declared(name: str, function: Any, text: str, **options: Any) -> Any:
    op = with_kernel(name, function)
    op.shard(text, **options)
    return op


def compiled(op: Any, mesh: Any, sizes: Any, where: list[Any], debug: bool = False) -> list[str]:
    torch._dynamo.reset()
    call: Any = torch.compile(lambda *given: op(*given) * 2, backend="aot_eager", dynamic=True)
    found = []
    for shapes in sizes:
        plain = [torch.randn(shape, requires_grad=True) for shape in shapes]
        want = op(*plain) * 2
        expected = torch.autograd.grad((want**2).sum(), plain)
        cut: Any = [
            distribute_tensor(t.detach(), mesh, [p]).requires_grad_() for t, p in zip(plain, where, strict=True)
        ]
        if debug:  # under a mode torch.compile leaves the call alone, and would compile what decides about it
            with CommDebugMode():  # type: ignore[no-untyped-call]
                got = call(*cut)
        else:
            got = call(*cut)
        grads: Any = torch.autograd.grad((got**2).sum(), cut)
        torch.testing.assert_close(got.full_tensor(), want)
        torch.testing.assert_close([g.full_tensor() for g in grads], list(expected))
        found.append(repr(got.placements[0]))
    return found


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows = [[(n, 4)] for n in (6, 5, 3, 8)]
    product = declared("products_open", products, "x[b, k] y[b, k] -> [b]", sums="k")
    found = {
        "undeclared": compiled(with_kernel("largest_open", largest), mesh, [*rows, [(1, 4)]], [S(0)]),
        "refuses": compiled(declared("two_rows_open", two_rows, "x[b, k] -> [b, k]", over="b"), mesh, rows, [S(0)]),
        "declared": compiled(declared("soft_open", softened, "x[b, k] -> [b, k]", over="b"), mesh, rows, [S(0)]),
        "linear": compiled(ow.linear, mesh, [[(n, 4), (6, 4), (6,)] for n in (6, 5, 3)], [R, S(0), S(0)]),
        "fits": compiled(product, mesh, [[(n, 4), (n, 4)] for n in (6, 5)], [S(1), S(1)], debug=True),
        "misfit": compiled(product, mesh, [[(n, 4), (n, 1)] for n in (6, 5)], [S(1), R], debug=True),
    }
    if dist.get_rank() == 0:
        print(json.dumps(found))
    ranks.leave()
