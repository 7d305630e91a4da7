"""Calls of operators on DTensors and on the tensors that these are pieces of; run by torchrun.

For each: where the results and gradients are, which collectives it took, and whether all values are right.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import opwright as ow
from tests.kit.distributed import ranks, train

R, S = Replicate(), Shard
Call = tuple[Callable[..., Any], list[Tensor], list[Any], dict[str, Any]]


def seen_kernels() -> tuple[Any, list[tuple[int, ...]]]:
    """An operator of a user's, with a kernel in Python that tells what it ran on."""
    ran: list[tuple[int, ...]] = []

    @ow.op(name="rows_of_a_user")
    def rows(x: Tensor, weight: Tensor, *, scale: float = 1.0, shift: Tensor | None = None) -> Tensor:
        out = torch.nn.functional.softmax(x, -1) @ weight.t() * scale
        return out if shift is None else out + shift.unsqueeze(-1)

    @rows.kernel("cpu", ow.Domain(sizes="x[..., k] weight[n, k] shift[b]"))
    def _(x: Tensor, weight: Tensor, *, scale: float = 1.0, shift: Tensor | None = None) -> Tensor:
        ran.append(tuple(x.shape))
        out: Tensor = rows.reference(x, weight, scale=scale, shift=shift)
        return out

    rows.shard("x[b, k] weight[n, k] shift[b] -> [b, n]", over="b n")
    return rows, ran


def undeclared() -> tuple[Any, list[tuple[int, ...]]]:
    """One of which nothing is declared: its reference is asked."""
    ran: list[tuple[int, ...]] = []

    @ow.op(name="normed_of_a_user")
    def normed(x: Tensor, *, centered: bool = False) -> Tensor:
        x = x - x.mean(0) if centered else x
        return x / (x * x).sum(-1, keepdim=True).sqrt()

    @normed.kernel("cpu")
    def _(x: Tensor, *, centered: bool = False) -> Tensor:
        ran.append(tuple(x.shape))
        out: Tensor = normed.reference(x, centered=centered)
        return out

    return normed, ran


def calls() -> dict[str, Call]:
    x, w, b = torch.randn(6, 4), torch.randn(8, 4), torch.randn(8)
    cell = [torch.randn(5, 4), torch.randn(9, 7), torch.randn(9), torch.randn(5, 3), torch.randn(5, 3)]
    steps = [torch.randn(3, 5, 4), torch.randn(9, 4), torch.randn(9, 3), torch.randn(9), torch.randn(9)]
    state, lengths = [torch.randn(5, 3), torch.randn(5, 3)], torch.tensor([1, 2, 3, 0, 2])
    layers: dict[str, Any] = {"ow": ow.linear, "nn": torch.nn.functional.linear}
    found: dict[str, Call] = {
        "sigmoid rows": (ow.sigmoid, [torch.randn(5, 3)], [S(0)], {}),
        "sigmoid columns": (ow.sigmoid, [torch.randn(5, 3)], [S(1)], {}),
        "sigmoid empty piece": (ow.sigmoid, [torch.randn(1, 3)], [S(0)], {}),
        "scale whole": (ow.scale, [torch.randn(5, 3)], [R], {"factor": 2.0}),
        "axpby": (ow.axpby, [torch.randn(6, 3), torch.randn(6, 3)], [S(0), S(0)], {"a": 2}),
        "axpby broadcast": (ow.axpby, [torch.randn(6, 3), torch.randn(3)], [S(0), R], {"b": 3}),
        "axpby moved": (ow.axpby, [torch.randn(6, 3), torch.randn(6, 3)], [S(0), S(1)], {}),
        "cell": (ow.lltm_cell, cell, [S(0), R, R, S(0), S(0)], {}),
        "lltm": (ow.lltm, [*steps, *state], [S(1), R, R, R, R, S(0), S(0)], {}),
        "lltm lengths": (
            lambda x, ih, hh, lengths: ow.lltm(x, ih, hh, lengths=lengths, reverse=True, all_cells=True),
            [*steps[:3], lengths],
            [S(1), R, R, R],
            {},
        ),
    }
    for name, layer in layers.items():
        found[f"{name} linear batch"] = layer, [x, w, b], [S(0), R, R], {}
        found[f"{name} linear n"] = layer, [x, w, b], [R, S(0), S(0)], {}
        found[f"{name} linear k"] = layer, [x, w, b], [S(1), S(1), R], {}
        found[f"{name} linear k alone"] = layer, [x, w], [S(1), S(1)], {}
    return found


def spread(t: Tensor, mesh: Any, placement: Any) -> Any:
    made = distribute_tensor(t.detach(), mesh, [placement])
    return made.requires_grad_(t.is_floating_point())


def measure(mesh: Any, function: Any, given: list[Tensor], placements: list[Any], options: Any) -> dict[str, Any]:
    plain = [t.clone().requires_grad_(t.is_floating_point()) for t in given]
    pieces = [spread(t, mesh, p) for t, p in zip(plain, placements, strict=True)]
    want, differentiated = flat(function(*plain, **options)), [t for t in plain if t.requires_grad]
    with CommDebugMode() as forward:  # type: ignore[no-untyped-call]
        got = flat(function(*pieces, **options))
    incoming = [torch.randn(t.shape) for t in want]
    # As the next layer would send it: cut where the result is, whole where the result is a sum.
    sent = [
        spread(g, mesh, S(t.placements[0].dim) if t.placements[0].is_shard() else R)
        for g, t in zip(incoming, got, strict=True)
    ]
    with CommDebugMode() as backward:  # type: ignore[no-untyped-call]
        grads: Any = torch.autograd.grad(got, [t for t in pieces if t.requires_grad], sent)
    torch.testing.assert_close([t.full_tensor() for t in got], want)
    expected = torch.autograd.grad(want, differentiated, incoming)
    torch.testing.assert_close([g.full_tensor() for g in grads], list(expected))
    return {
        "results": [repr(t.placements[0]) for t in got],
        "gradients": [repr(g.placements[0]) for g in grads],
        "forward": counts(forward),
        "backward": counts(backward),
    }


def flat(out: Any) -> list[Any]:
    return [t for t in (out if isinstance(out, tuple) else [out]) if t is not None]


def counts(mode: Any) -> dict[str, int]:
    return {str(op).rsplit(".", 1)[-1].strip("')>"): n for op, n in mode.get_comm_counts().items()}


def odd(mesh: Any) -> None:
    """Calls that PyTorch, or a rule kept from another call, would get wrong."""
    x = torch.randn(6, 4)
    rows: Any = spread(x, mesh, S(0))

    @ow.op(name="soft_or_not")
    def soft(x: Tensor, *, whole: bool = False) -> Tensor:
        return torch.softmax(x, 0) if whole else torch.tanh(x)

    soft.kernel("cpu")(soft.reference)
    for _ in range(2):
        for whole in (False, True):
            got: Any = soft(rows, whole=whole)
            torch.testing.assert_close(got.full_tensor(), soft.reference(x, whole=whole))

    @ow.op(name="waves")
    def waves(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sin(x), torch.cos(x)

    waves.kernel("cpu")(waves.reference)
    waves.gradient(lambda grad_0, grad_1, x: grad_0 * torch.cos(x) - grad_1 * torch.sin(x))
    (gradient,) = torch.autograd.grad(waves(rows)[1].sum(), rows)  # the other result's gradient never comes
    torch.testing.assert_close(gradient.full_tensor(), -torch.sin(x))

    @ow.op(name="put_together")
    def together(given: list[Tensor]) -> Tensor:
        return torch.stack(given)

    together.kernel("cpu")(together.reference)
    stacked: Any = together([rows, rows])
    torch.testing.assert_close(stacked.full_tensor(), torch.stack([x, x]))

    @ow.op(name="by_count")
    def by_count(x: Tensor) -> Tensor:
        return x / x.shape[0]

    by_count.kernel("cpu")(by_count.reference)
    counted: Any = by_count(rows)
    torch.testing.assert_close(counted.full_tensor(), x / 6)
    by_count.shard("x[b, k] -> [b, k]", over="k")  # said after DTensor has asked
    counted = by_count(spread(x, mesh, S(1)))
    torch.testing.assert_close(counted.full_tensor(), x / 6)


def users(mesh: Any) -> dict[str, Any]:
    rows, ran = seen_kernels()
    normed, went = undeclared()
    x, w, shift = torch.randn(6, 4), torch.randn(3, 4), torch.randn(6)
    declared = measure(mesh, rows, [x, w], [S(0), R], {"scale": 2.0})
    declared["kernel"] = ran[1:2] == [(3, 4)]
    columns = measure(mesh, rows, [x, w], [R, S(0)], {})
    by_keyword = measure(mesh, lambda a, b, c: rows(a, b, shift=c), [x, w, shift], [S(0), R, R], {})
    carried = measure(mesh, normed, [torch.randn(6, 4)], [S(0)], {})
    carried["kernel"] = (3, 4) in went
    went.clear()
    flagged = measure(mesh, normed, [torch.randn(6, 4)], [S(0)], {"centered": True})
    flagged["kernel"] = (3, 4) in went
    written = spread(torch.zeros(5, 3), mesh, S(0)).detach()
    ow.sigmoid_(written)
    assert written.full_tensor().eq(0.5).all()
    partial = DTensor.from_local(torch.full((2, 3), float(dist.get_rank() + 1)), mesh, [Partial()])
    total = sum(range(1, dist.get_world_size() + 1))
    summed: Any = ow.sigmoid(partial)
    torch.testing.assert_close(summed.full_tensor(), torch.full((2, 3), float(total)).sigmoid())
    with torch.inference_mode():
        torch.testing.assert_close(ow.sigmoid(spread(x, mesh, S(0))).full_tensor(), x.sigmoid())
    twice = spread(torch.randn(5, 2), mesh, S(0))
    first: Any
    second: Any
    (first,) = torch.autograd.grad(ow.cube(twice).sum(), twice, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), twice)
    torch.testing.assert_close(second.full_tensor(), 6 * twice.detach().full_tensor())
    return {
        "user rows": declared,
        "user columns": columns,
        "user keyword": by_keyword,
        "user undeclared": carried,
        "user undeclared whole": flagged,
    }


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found = {}
    for name, (function, given, placements, options) in calls().items():
        for _ in range(2):  # what is kept of the first call serves the second
            found[name] = measure(mesh, function, given, placements, options)
    found |= users(mesh)
    odd(mesh)
    found["train"] = train.run(["fsdp", "tp"])
    if dist.get_rank() == 0:
        print(json.dumps(found))
    ranks.leave()
