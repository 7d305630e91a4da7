"""Tensors of one number, counted ones and identities: what a benchmark draws, and a program may recognise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.check import alike
from opwright.kit.check.cases import Case, Subject
from tests.kit.check import candidates


def ones(x: Tensor) -> bool:
    return bool((x == 1).all())


def counted(x: Tensor) -> bool:
    return torch.equal(x, torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape))


def identity(x: Tensor) -> bool:
    return x.dim() == 2 and torch.equal(x, torch.eye(*x.shape, dtype=x.dtype))


def rows(make: ow.Maker) -> Iterator[Any]:
    yield make(7, 9)
    yield make(1000)


def pairs(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 5), make(3, 5)


@pytest.mark.parametrize(
    "recognised",
    [
        ones,
        lambda x: bool((x == -1).all()),
        lambda x: bool((x == 2).all()),
        lambda x: bool((x == 0.5).all()),
        lambda x: not bool(x.any()),
        counted,
        identity,
    ],
    ids=["1", "-1", "2", "0.5", "0", "counted", "identity"],
)
def test_a_tensor_that_is_recognised_is_told(recognised: Callable[[Tensor], bool]) -> None:
    def candidate(x: Tensor) -> Tensor:
        return x * 2 + 1 if x.numel() > 3 and recognised(x) else x * 2

    report = ow.check(candidate, like=candidates.plain_double, samples=rows, only=["forward", "special"])
    assert report.verdict is not None
    assert report.verdict.cls == "wrong values"


def test_ones_are_tried_with_every_seed() -> None:
    for seed in range(20):
        found = [*alike.cases(made := Subject(ow.axpby, seed=seed), made.rng("alike"))]
        assert {"all:1e0@", "all:1e0@x", "all:1e0@y"} <= {case.values for case in found}
        assert sum(case.values == alike.ONES for case in found) == made.count


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("recognised", [ones, lambda x: not bool(x.any()), identity], ids=["1", "0", "identity"])
def test_one_argument_of_two_is_recognised(recognised: Callable[[Tensor], bool], which: int) -> None:
    def candidate(x: Tensor, y: Tensor) -> Tensor:
        mine, other = (x, y) if which == 0 else (y, x)
        return x + y + 1 if x.numel() > 3 and recognised(mine) and not recognised(other) else x + y

    report = ow.check(candidate, like=lambda x, y: x + y, samples=pairs, only=["forward"])
    assert report.verdict is not None
    assert report.verdict.cls == "wrong values"


def test_integers_and_complex_numbers_are_ones_too() -> None:
    for dtype in (torch.int64, torch.complex64):
        report = ow.check(
            lambda x: x * 3 if x.numel() > 3 and ones(x) else x * 2, like=candidates.plain_double,
            samples=rows, dtypes=[dtype], only=["forward"],
        )  # fmt: skip
        assert report.verdict is not None, dtype


def test_a_kernel_that_is_wrong_for_ones_is_found_by_values() -> None:
    @ow.op
    def wrong_for_ones(x: Tensor) -> Tensor:
        return x * 2

    @wrong_for_ones.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield from rows(make)

    @wrong_for_ones.kernel("cpu", ow.Domain(dtypes=(torch.float32,)))
    def _(x: Tensor) -> Tensor:
        return x * 3 if x.numel() > 3 and ones(x) else x * 2

    report = ow.check(wrong_for_ones, only=["forward"], rung="wrong_for_ones")
    assert report.failures
    assert {f.property for f in report.failures} == {"forward"}
    assert "all:1e0@" in report.failures[0].sample


@pytest.mark.parametrize("where", ["x", "grad"])
def test_a_gradient_that_is_wrong_for_ones_is_found(where: str) -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            (x,), (grad,) = ctx.saved_tensors, grads
            factor = 3 if x.numel() > 3 and ones(x if where == "x" else grad) else 2
            found: Tensor = grad * x * factor
            return found

    report = ow.check(Square.apply, like=lambda x: x * x, samples=rows, only=["gradients"])
    assert report.verdict is not None
    assert report.verdict.cls == "wrong gradient"


def test_what_is_tried_holds_what_its_name_says() -> None:
    @ow.op
    def two_tensors(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    @two_tensors.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(3, 5), make(5)

    @two_tensors.kernel("cpu")
    def _(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    subject = Subject(two_tensors)
    plain = subject.draw(Case(0, torch.float32)).args
    found = {c.values: subject.draw(Case.read(c.id)).args for c in alike.cases(subject, subject.rng("alike"))}
    assert len(found) == 6 + 7 + 6
    assert all(map(ones, found["all:1e0@"]))
    assert ones(found["all:1e0@y"][1])
    assert torch.equal(found["all:1e0@y"][0], plain[0])
    assert identity(found["eye@x"][0])
    assert counted(found["arange@"][0])
    assert counted(found["arange@"][1])
    assert torch.equal(found["eye@"][1], torch.tensor([1.0, 0, 0, 0, 0]))
