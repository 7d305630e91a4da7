"""Operators whose calls are recorded in C++ or in Python, as a test asks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.dispatch import native, registry

Define = Callable[..., ow.Op[..., Any]]
counter = itertools.count()


@pytest.fixture(params=["node", "python"])
def define(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Define:
    """Defines an opaque operator whose calls are recorded in C++, or in Python."""
    if request.param == "python":
        monkeypatch.setattr(native, "available", lambda: "this test forbids it")
    elif native.available() is not None:
        pytest.skip(f"the node: {native.available()}")

    def make(function: Callable[..., Any], *warm: Any, **options: Any) -> ow.Op[..., Any]:
        op: ow.Op[..., Any] = ow.op(namespace=f"node_{next(counter)}", opaque=True, **options)(function)
        if warm:  # at its first call C++ takes over
            op(*warm)
            assert registry.entry_of(op.overload.name()).native == (request.param == "node")
        return op

    return make


def product(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def squash(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


def a_product(define: Define, asked: list[list[bool]] | None = None) -> ow.Op[..., Any]:
    op = define(product, torch.ones(1), torch.ones(1))

    @op.gradient
    def _(grad: Tensor, x: Tensor, y: Tensor, wanted: list[bool]) -> Any:
        if asked is not None:
            asked.append(wanted)
        return (grad * y if wanted[0] else None), (grad * x if wanted[1] else None)

    return op


def a_squash(define: Define) -> ow.Op[..., Any]:
    op = define(squash, torch.ones(1))

    @op.gradient
    def _(grad: Tensor, result: Tensor) -> Tensor:
        return grad * result * (1 - result)

    return op


def pair() -> tuple[Tensor, Tensor]:
    return torch.rand(3, dtype=torch.float64).requires_grad_(), torch.rand(3, dtype=torch.float64).requires_grad_()
