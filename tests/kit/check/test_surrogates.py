"""The check of gradients that are not the derivative on purpose, and of references that leave PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

_numbers = itertools.count()
GRADIENTS = ("gradients", "gradcheck", "undefined", "compile", "fake")


def straight_through(wrong: bool = False, surrogate: bool = True) -> ow.Op[..., Any]:
    def stepped(x: Tensor) -> Tensor:
        return x.sign()

    op: ow.Op[..., Any] = ow.op(name=f"stepped{next(_numbers)}", namespace="surrogates")(stepped)

    @op.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        if make.dtype.is_floating_point:
            yield make(5)
            yield make(3, 4)

    @op.gradient(surrogate=surrogate)
    def _(grad: Tensor, x: Tensor) -> Tensor:
        return grad * (x.abs() <= 1)

    op.kernel("cpu")(lambda x: x.sign())
    op.backward.kernel("cpu")(lambda grad, x, wanted=None: grad * (x.abs() <= (1.5 if wrong else 1)))
    return op


def test_a_surrogate_passes_as_one() -> None:
    report = ow.check(straight_through(), only=GRADIENTS)
    assert report.passed, str(report)


def test_a_kernel_that_differs_from_the_surrogate_is_caught() -> None:
    report = ow.check(straight_through(wrong=True), only=("forward", *GRADIENTS))
    assert not report.passed


def test_a_formula_that_differs_without_a_word_is_caught() -> None:
    report = ow.check(straight_through(surrogate=False), only=("gradients",))
    assert not report.passed


def through_numpy(factor: float) -> ow.Op[..., Any]:
    def squared(x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() ** 2)

    op: ow.Op[..., Any] = ow.op(name=f"squared{next(_numbers)}", namespace="surrogates")(squared)

    @op.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        if make.dtype in (torch.float32, torch.float64):
            yield make(5)
            yield make(3, 4)

    @op.fake
    def _(x: Tensor) -> Tensor:
        return torch.empty(x.shape, dtype=x.dtype) if x.is_contiguous() else torch.empty_like(x)

    @op.gradient
    def _(grad: Tensor, x: Tensor) -> Tensor:
        return factor * grad * x

    return op


def test_a_reference_in_numpy_is_proved_by_differences() -> None:
    report = ow.check(through_numpy(2.0), only=("gradients", "gradcheck", "compile"))
    assert report.passed, str(report)


def test_a_wrong_gradient_of_a_reference_in_numpy_is_caught() -> None:
    report = ow.check(through_numpy(3.0), only=("gradcheck",))
    assert not report.passed


def test_a_fake_kernel_that_lies_is_caught() -> None:
    op = through_numpy(2.0)

    @op.fake
    def _(x: Tensor) -> Tensor:
        return x.new_empty(*x.shape, 1)

    assert not ow.check(op, only=("fake",)).passed
