"""Results that are views of memory which only the operator has seen are results like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opwright as ow


def transposed(x: Tensor, w: Tensor) -> Tensor:
    return (w @ x.t()).t()


def squeezed(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w.t()).unsqueeze(-1).squeeze(-1)


def picked(x: Tensor, w: Tensor) -> Tensor:
    return torch.stack([x @ w.t(), x @ w.t() * 2])[1]


def add(y: Tensor) -> Tensor:
    y += 1
    return y


def rectify(y: Tensor) -> Tensor:
    return F.relu_(y)


def clamp_unseen(y: Tensor) -> Tensor:
    with torch.no_grad():
        y.clamp_(-0.5, 0.5)
    return y


def add_detached(y: Tensor) -> Tensor:
    y.detach().add_(1)
    return y


USES = (add, rectify, clamp_unseen, add_detached)


@pytest.mark.parametrize("use", USES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("plain", [transposed, squeezed, picked], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kernel", [False, True], ids=["reference", "kernel"])
def test_a_result_is_written_to_as_the_plain_functions_is(
    plain: Callable[..., Any], use: Callable[..., Any], kernel: bool
) -> None:
    op: ow.Op[..., Any] = ow.op(opaque=True, namespace=f"results_{use.__name__}_{kernel}")(plain)
    if kernel:
        op.kernel("cpu")(plain)
    for _round in range(3):
        x, w = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
        expected = torch.autograd.grad(use(plain(x, w)).sin().sum(), (x, w))
        found = torch.autograd.grad(use(op(x, w)).sin().sum(), (x, w))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("use", USES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3)])
def test_linear_of_any_rank_is_written_to(shape: tuple[int, ...], use: Callable[..., Any]) -> None:
    for _round in range(2):
        x, w = torch.randn(shape, requires_grad=True), torch.randn(5, 3, requires_grad=True)
        expected = torch.autograd.grad(use(F.linear(x, w)).sin().sum(), (x, w))
        found = torch.autograd.grad(use(ow.linear(x, w, None)).sin().sum(), (x, w))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
