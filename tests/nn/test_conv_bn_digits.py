"""The statistics of conv_bn keep their digits, whatever lies far from what."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import opwright as ow


def test_a_bias_takes_no_digits() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 3, 4, 4, requires_grad=True), torch.randn(5, 3, 1, 1) * 1e-6
    gamma, found = torch.ones(5, requires_grad=True), []
    for bias in (None, torch.full((5,), 1e9)):
        out = ow.conv_bn(x, weight, bias, gamma, eps=1e-12).output
        found.append([out.detach(), *torch.autograd.grad(out.square().sum() + out[0].sum(), (x, gamma))])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("last", [False, True])
def test_a_mean_far_below_the_values_keeps_its_digits(last: bool) -> None:
    x = torch.randint(-4000, 4000, (1, 2, 9, 7), generator=torch.Generator().manual_seed(0)).double() / 4
    x[0, :, 0, 0] = 1000.25  # what deviations are taken from
    x[0, :, 8, 6] -= x.sum((0, 2, 3)) - 0.25
    x = x.to(memory_format=torch.channels_last) if last else x
    exact = torch.full((2,), 0.25 / 63, dtype=torch.float64)
    found = ow.conv_bn(x, torch.eye(2, dtype=torch.float64)[:, :, None, None]).mean
    torch.testing.assert_close(found, exact, rtol=4 * torch.finfo(torch.float64).eps, atol=0)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_value_far_off_takes_no_digits_of_the_variance(last: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 3, 500, 500).to(dtype)
    x[:, :, 0, 0] = 1e4  # which is the first, where a pass takes its pivot
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    found = ow.conv_bn(x, torch.eye(3).view(3, 3, 1, 1).to(dtype))
    expected = x.double().var((0, 2, 3), correction=0)
    torch.testing.assert_close(found.var.double(), expected, rtol=3e-6, atol=0)


def test_a_sum_that_overflows_has_a_mean() -> None:
    torch.manual_seed(0)
    x = 2e38 + 1e33 * torch.randn(1, 1, 50, 50)
    found = ow.conv_bn(x, torch.ones(1, 1, 1, 1)).mean
    torch.testing.assert_close(found.double(), x.double().mean((0, 2, 3)), rtol=1e-5, atol=0)


def test_the_gradient_of_a_variance_is_not_off_by_what_its_mean_is_rounded_by() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 1, 3, 3) - 327
    weight = torch.full((1, 1, 1, 1), 970.0)

    def slope(dtype: torch.dtype) -> Tensor:
        w = weight.to(dtype).requires_grad_()
        return torch.autograd.grad(ow.conv_bn(x.to(dtype), w).var.sum(), w)[0].double()

    torch.testing.assert_close(slope(torch.float32), slope(torch.float64), rtol=1e-3, atol=0)
