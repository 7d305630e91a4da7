"""Right operators that the check once rejected, for what PyTorch itself does or leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.check.report import Finding
from opwright.kit.truth.oracle import Oracle


@ow.op(mutates=("peak",))
def alarm_peak(x: Tensor, peak: Tensor) -> Tensor:
    """PyTorch cannot differentiate it: maximum needs the peak that is then written to."""
    peak.copy_(torch.maximum(peak, x.detach()))
    return x / peak


@alarm_peak.kernel("cpu", ow.Domain(dtypes=(torch.float32,)))
def _(x: Tensor, peak: Tensor) -> Tensor:
    torch.maximum(peak, x, out=peak)
    return x / peak


@alarm_peak.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5), make(5)


@pytest.mark.parametrize("only", ["gradients", "undefined", "compile", "gradcheck"])
def test_a_reference_that_pytorch_cannot_differentiate_is_no_fault_of_the_operator(only: str) -> None:
    x, peak = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        alarm_peak.reference(x, peak * 1).sum().backward()
    report = ow.check(alarm_peak, only=[only])
    assert report.passed, report


def test_a_formula_that_pytorch_cannot_batch_is_no_fault_of_the_operator() -> None:
    @ow.op
    def alarm_swap(x: Tensor) -> Tensor:
        ow.require(x.is_floating_point() and x.dim() > 0 and x.shape[-1] % 2 == 0, "x must have pairs")
        return torch.stack((x[..., 1::2] * 3, x[..., 0::2]), -1).flatten(-2)

    @alarm_swap.gradient
    def _(grad: Tensor) -> Tensor:
        return torch.stack((grad[..., 1::2], grad[..., 0::2] * 3), -1).flatten(-2)

    @alarm_swap.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(3, 4)

    @alarm_swap.kernel("cpu", ow.Domain(dtypes=(torch.float32, torch.float64), sizes="x[..., 2*k]"))
    def _(x: Tensor) -> Tensor:
        return torch.stack((x[..., 1::2] * 3, x[..., 0::2]), -1).flatten(-2)

    report = ow.check(alarm_swap, only=["gradcheck"])
    assert report.passed, report


@ow.op(mutates=("mean",))
def alarm_statistics(x: Tensor, mean: Tensor, *, training: bool = True) -> Tensor:
    if training:
        mean.lerp_(x.mean(0).detach(), 0.1)
        return x - x.mean(0)
    return x - mean


@alarm_statistics.kernel("cpu", ow.Domain(dtypes=(torch.float32,)))
def _(x: Tensor, mean: Tensor, *, training: bool = True) -> Tensor:
    if training:
        mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return x - (x.mean(0) if training else mean)


@alarm_statistics.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 3), make(3)
    yield make(4, 3), make(3), {"training": False}


def test_a_buffer_that_a_call_leaves_alone_need_not_be_marked_as_written() -> None:
    report = ow.check(alarm_statistics, only=["fake"])
    assert report.passed, report


def test_samples_of_complex_numbers_alone_are_samples() -> None:
    @ow.op
    def alarm_phase(x: Tensor) -> Tensor:
        ow.require(x.is_complex(), "x must be complex, got {x.dtype}")
        return x / (x.abs() + 1)

    @alarm_phase.samples
    def _(make: ow.Maker) -> Iterator[Tensor]:
        if make.dtype.is_complex:
            yield make(3, 4)

    @alarm_phase.kernel("cpu", ow.Domain(dtypes=(torch.complex64, torch.complex128)))
    def _(x: Tensor) -> Tensor:
        return torch.complex(x.real, x.imag) / (torch.hypot(x.real, x.imag) + 1)

    report = ow.check(alarm_phase, only=["forward", "gradients"])
    assert report.passed, report
    assert report.cases > 50


def ridge(sample: ow.Sample) -> list[Tensor | None]:
    a, b = sample.args
    gram = a.t() @ a + torch.eye(a.shape[1], dtype=a.dtype)
    return [torch.cholesky_solve(a.t() @ b, torch.linalg.cholesky(gram))]


def by_elimination(sample: ow.Sample) -> Tensor:
    a, b = sample.args
    gram = (a.t() @ a).double() + torch.eye(a.shape[1], dtype=torch.float64)
    found: Tensor = torch.linalg.solve(gram, (a.t() @ b).double())
    return found.float()


@pytest.mark.parametrize("seed", range(4))
def test_a_matrix_that_is_hardly_positive_definite_says_nothing_of_a_solver(seed: int) -> None:
    """With rounding errors drawn anew Cholesky fails, most of the time."""
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(15, 33, generator=generator), torch.randn(15, 7, generator=generator)

    sample = ow.Sample((a * 256, b * 256))
    oracle = Oracle(ridge, sample)
    oracle.judge([by_elimination(sample)])
    assert oracle.chaotic(0)

    sample = ow.Sample((a, b))
    oracle = Oracle(ridge, sample)
    oracle.judge([by_elimination(sample)])
    with pytest.raises(Finding, match="off by"):
        oracle.judge([by_elimination(sample) + 0.01])
    assert not oracle.chaotic(0)
