"""What an operator is given beside DTensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kit.distributed.threads import R, S, on_ranks, spread, whole, with_kernel


@pytest.mark.parametrize("declared", [True, False])
def test_a_plain_number_by_keyword_stands_beside_dtensors(declared: bool) -> None:
    def scaled(x: Tensor, *, y: Tensor, scale: Tensor | None = None) -> Tensor:
        out = x.softmax(-1) * y
        return out if scale is None else out * scale

    op, x, y, scale = (
        with_kernel(f"plain_scale_{declared}", scaled),
        torch.randn(4, 6),
        torch.randn(4, 6),
        torch.ones(()),
    )
    if declared:
        op.shard("x[b, k] y[b, k] scale[] -> [b, k]", over="b")

    def call(rank: int, mesh: Any) -> None:
        for where in (S(0), S(1), R):
            got = op(spread(x, mesh, S(0)), y=spread(y, mesh, where), scale=scale * 3)
            torch.testing.assert_close(whole(got), 3 * scaled(x, y=y))

    on_ranks(call)


def test_integers_that_enter_a_sum_once_stay_integers() -> None:
    """PyTorch makes summands by division, and floating-point numbers of integers by that."""

    def counted(x: Tensor, start: Tensor) -> Tensor:
        return x.sum(0) + start

    op, x, start = with_kernel("counted_once", counted), torch.arange(20).view(5, 4), torch.tensor([1, 2, 3, 2**40 + 1])
    op.shard("x[b, k] start[k] -> [k]", sums="b", once="start")

    def call(rank: int, mesh: Any) -> None:
        got = op(spread(x, mesh, S(0)), spread(start, mesh, R))
        assert got.to_local().dtype == torch.int64
        assert torch.equal(whole(got), counted(x, start))

    on_ranks(call, 3)
