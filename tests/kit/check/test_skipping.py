"""What a mask hides: a kernel need not read it, though 0 times an infinity is NaN in the reference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow
from opwright.kit.truth.skipping import Skipping, left_out


@ow.op
def skipping_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention."""
    ow.require(q.dim() == 3 and q.shape == k.shape == v.shape, "q, k and v must be [b, t, d]")
    s = q @ k.transpose(1, 2)
    later = torch.ones(s.shape[1:], dtype=torch.bool, device=s.device).triu(1)
    return torch.softmax(s.masked_fill(later, -math.inf), -1) @ v


@skipping_attention.kernel("cpu", ow.Domain(dtypes=(torch.float32,), sizes="q[b, t, d] k[b, t, d] v[b, t, d]"))
def _(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = torch.empty(q.shape, dtype=q.dtype)
    for t in range(q.shape[1]):
        seen = slice(0, t + 1)
        weights = torch.softmax(q[:, t : t + 1] @ k[:, seen].transpose(1, 2), -1)
        out[:, t : t + 1] = weights @ v[:, seen]
    return out


@skipping_attention.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(2, 5, 4), make(2, 5, 4), make(2, 5, 4)


@ow.op
def dropped_nan(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.t()


@dropped_nan.kernel("cpu", ow.Domain(dtypes=(torch.float32,), sizes="x[b, k] weight[n, k]"))
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.nan_to_num(0.0, math.inf, -math.inf) @ weight.t()


@dropped_nan.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 4), make(5, 4)


@ow.op
def factored_codes(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """x · (codes · scale)ᵀ."""
    ow.require(codes.dtype == torch.int8 and x.dtype == scale.dtype, "codes must be int8, x and scale alike")
    return x @ (codes.to(x.dtype) * scale[:, None]).t()


@factored_codes.kernel(
    "cpu", ow.Domain(dtypes=(torch.float32,), types={"codes": (torch.int8,)}, sizes="x[b, k] codes[n, k] scale[n]")
)
def _(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    return (x @ codes.to(x.dtype).t()) * scale


@factored_codes.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 8), torch.arange(-20, 20, dtype=torch.int8, device=make.device).reshape(5, 8), make(5)


def test_a_kernel_need_not_read_what_is_masked() -> None:
    for seed in range(3):
        report = ow.check(skipping_attention, only=["special"], seed=seed, rung="skipping_attention")
        assert report.passed, report


def test_a_kernel_may_take_a_factor_out_of_a_sum() -> None:
    for seed in range(3):
        report = ow.check(factored_codes, only=["special"], seed=seed, rung="factored_codes")
        assert report.passed, report


def test_a_kernel_that_drops_a_nan_is_wrong_all_the_same() -> None:
    report = ow.check(dropped_nan, only=["special"], rung="dropped_nan")
    assert "where the reference is nan" in report.failures[0].message, report


def test_only_what_has_a_weight_of_zero_is_left_out() -> None:
    nan, inf = math.nan, math.inf
    a = torch.tensor([[0.0, 1.0], [2.0, 1.0], [nan, 0.0]])
    b = torch.tensor([[inf, nan], [3.0, 0.0]])
    with Skipping():
        product = a @ b
        masked = torch.tensor([nan, 2.0]) * torch.tensor([False, True])
        as_numbers = torch.tensor([nan, 2.0]) * torch.tensor([False, True]).to(torch.float32)
        plain = torch.tensor([nan, 2.0]) * torch.tensor([0.0, 1.0])
    expected = torch.tensor([[3.0, 0.0], [inf, nan], [nan, nan]])
    torch.testing.assert_close(product, expected, equal_nan=True)
    assert (masked.tolist(), as_numbers.tolist()) == ([0.0, 2.0], [0.0, 2.0])
    assert plain[0].isnan()
    [told] = left_out([torch.tensor([nan, nan, 1.0])], [torch.tensor([nan, 4.0, nan])], [torch.tensor([2.0, 4.0, 5.0])])
    torch.testing.assert_close(told, torch.tensor([2.0, nan, 1.0]), equal_nan=True)
