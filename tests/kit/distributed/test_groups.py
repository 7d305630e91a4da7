"""Operators that communicate by themselves, on DTensors: between the devices of the group that a call names, or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor.debug import CommDebugMode

import opwright as ow
from tests.kit.distributed.threads import R, S, decided, on_ranks, spread, whole


def centring(name: str) -> Any:
    @ow.op(name=name, opaque=True)
    def centred(x: Tensor, *, group: str = "") -> Tensor:
        from torch.distributed import _functional_collectives

        collectives: Any = _functional_collectives
        total, count = x.sum(0), x.new_full((), float(x.shape[0]))
        if group:
            total, count = (collectives.wait_tensor(collectives.all_reduce(t, "sum", group)) for t in (total, count))
        return x - total / count.clamp_min(1)

    @centred.gradient
    def _(grad: Tensor, group: str) -> Tensor:
        return centred.reference(grad, group=group)  # type: ignore[no-any-return]

    centred.shard("x[b, k] -> [b, k]", group="group", across="b")
    return centred


def test_without_a_group_nothing_is_cut_that_communicates() -> None:
    op, x = centring("centred_without_a_group"), torch.randn(6, 4)

    def call(rank: int, mesh: Any) -> Any:
        rows, columns = op(spread(x, mesh, S(0))), op(spread(x, mesh, S(1)))
        torch.testing.assert_close([whole(rows), whole(columns)], [x - x.mean(0)] * 2)
        return rows.placements, columns.placements

    assert on_ranks(call) == [((R,), (S(1),))] * 2


def test_a_group_is_that_dimension_of_the_mesh_that_has_its_ranks() -> None:
    op, x = centring("centred_on_a_grid"), torch.randn(6, 4)
    placements = [(S(0), R), (R, S(0)), (R, R), (S(1), S(0)), (S(0), S(0)), (S(1), S(1))]

    def call(rank: int, mesh: Any) -> list[Any]:
        found = []
        for where in placements:
            out = op(spread(x, mesh, *where), group=mesh.get_group("data").group_name)
            torch.testing.assert_close(whole(out), x - x.mean(0))
            found.append(out.placements)
        return found

    for found in on_ranks(call, 2, 2):
        assert all(first == S(0) and second != S(0) for first, second in found)


def test_a_group_of_other_ranks_is_an_error() -> None:
    op, x = centring("centred_elsewhere"), torch.randn(6, 4)

    def call(rank: int, mesh: Any) -> None:
        with pytest.raises(Exception, match="no dimension of the mesh"):
            op(spread(x, mesh["model"], S(0)), group=mesh.get_group("data").group_name)

    on_ranks(call, 2, 2)


@pytest.mark.parametrize(("cut", "results"), [("batch", (S(0), R)), ("channels", (S(1), S(0)))])
def test_a_convolution_and_its_batch_norm_are_cut_along_batch_and_channels(cut: str, results: Any) -> None:
    sizes = [(4, 3, 5, 5), (6, 3, 3, 3), (6,), (6,), (6,), (4, 6, 5, 5)]
    given = [torch.randn(size, requires_grad=True) for size in sizes]
    options: dict[str, Any] = {"padding": [1, 1], "activation": "relu"}
    where = [S(0), R, R, R, R, S(0)] if cut == "batch" else [R, S(0), S(0), S(0), S(0), S(1)]
    want = ow.conv_bn(*given, **options)
    expected = torch.autograd.grad((want.output**2).sum(), given)

    def call(rank: int, mesh: Any) -> Any:
        pieces = [spread(t, mesh, p) for t, p in zip(given, where, strict=True)]
        told = {"group": mesh.get_group().group_name, "ranks": 2} if cut == "batch" else {}
        with CommDebugMode() as mode:  # type: ignore[no-untyped-call]
            out = ow.conv_bn(*pieces, **options, **told)
            grads = torch.autograd.grad((out.output**2).sum(), pieces)
        torch.testing.assert_close(whole(out.output), want.output.detach())
        torch.testing.assert_close([whole(g) for g in grads], list(expected), atol=1e-4, rtol=1e-4)
        assert decided(ow.conv_bn, *pieces, **options, **told) == "declared"
        return (out.output.placements[0], out.mean.placements[0]), mode.get_total_counts()

    # What moves is a sum for the gradient of the whole, once; the operator's own collectives are not DTensor's.
    for placed, moved in on_ranks(call):
        assert placed == results
        assert moved <= 1
