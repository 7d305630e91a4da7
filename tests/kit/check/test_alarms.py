"""Operators that the check once judged wrongly: right ones that it rejected, and wrong ones that it passed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.check import afford, calls
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.properties import special, state
from opwright.kit.check.report import Finding, NotApplicable
from opwright.kit.dispatch import writing
from opwright.kit.truth.oracle import Oracle
from opwright.kit.workers import worker


@ow.op
def alarm_centre(x: Tensor) -> Tensor:
    return x - x.sum()


@alarm_centre.kernel("cpu")
def _(x: Tensor) -> Tensor:
    return x - x.sum()


@alarm_centre.samples
def _(make: ow.Maker) -> Iterator[Tensor]:
    yield make(7)
    yield make(3, 4)


def test_a_reference_that_reduces_first_is_not_fed_what_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PATIENCE", 20.0)

    report = ow.check(alarm_centre, only=["rejects"])
    assert report.passed, report
    assert report.cases > 30


def test_shapes_that_depend_on_values_are_no_fault() -> None:
    @ow.op
    def alarm_positive(x: Tensor) -> Tensor:
        return x[x > 0] * 2

    @alarm_positive.samples
    def _(make: ow.Maker) -> Iterator[Tensor]:
        yield make(5)

    report = ow.check(alarm_positive, only=["forward", "vmap", "opcheck"])
    assert report.passed, report


@pytest.mark.parametrize("factor", [2, 3])
def test_a_declared_gradient_without_kernels_is_judged(factor: int) -> None:
    @ow.op(name=f"alarm_square_{factor}")
    def square(x: Tensor) -> Tensor:
        return x * x

    @square.gradient
    def _(grad: Tensor, x: Tensor) -> Tensor:
        return factor * grad * x.conj()

    @square.samples
    def _(make: ow.Maker) -> Iterator[Tensor]:
        yield make(3)

    report = ow.check(square, only=["gradients"])
    assert report.passed == (factor == 2), report
    if factor == 3:
        assert "the gradient is wrong in 3 of 3 elements" in report.failures[0].message


def test_a_reference_that_breaks_a_rule_on_one_path_is_a_finding() -> None:
    @ow.op
    def alarm_two_ways(x: Tensor, *, copy: bool = True) -> tuple[Tensor, Tensor]:
        return x * 2, (x * 3 if copy else x)

    @alarm_two_ways.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(3)
        yield make(3), {"copy": False}

    for name in ("forward", "fake"):
        report = ow.check(alarm_two_ways, only=[name])
        assert "the reference returns x" in report.failures[0].message
    x = torch.ones(2)
    alarm_two_ways(x)
    with pytest.raises(TypeError, match="the reference returns x"):
        alarm_two_ways(x, copy=False)


def test_samples_that_the_reference_rejects_prove_nothing() -> None:
    @ow.op
    def alarm_sum(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    @alarm_sum.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(3), make(4)

    report = ow.check(alarm_sum, only=["forward"])
    assert not report.passed
    assert "none of its samples is accepted in any dtype: the reference rejects it" in report.failures[0].message


def test_the_gradient_of_an_operator_with_a_result_of_integers_is_checked() -> None:
    @ow.op(name="with_integers", opaque=True)
    def op(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x.round().to(torch.int64)

    report = ow.check(op, only=["forward", "gradients"])
    assert report.passed, report
    assert {r.property for r in report.results if r.op == "with_integers_backward" and r.cases} == {
        "forward",
        "gradients",
    }


def test_a_kernel_that_reads_what_it_has_written_is_found_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    @ow.op
    def alarm_drift_(x: Tensor, y: Tensor) -> Tensor:
        return x.mul_(0.5).add_(y)

    @alarm_drift_.kernel("cpu")
    def _(x: Tensor, y: Tensor) -> None:
        x.copy_(x * 0.5 + y)

    @alarm_drift_.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(3), make(3)

    subject = Subject(alarm_drift_)
    (case,) = [case for case in state.cases(subject) if case.extra == "shared"]
    state.check(subject, case)
    monkeypatch.setattr(writing, "refuses", lambda op, values: None)
    with pytest.raises(Finding, match="with one tensor for both x, which it writes to, and y, it differs"):
        state.check(subject, case)


def test_a_reference_that_takes_nothing_is_told_and_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text(
        "import torch, opwright as ow\n"
        "@ow.op\ndef takes_nothing(x: torch.Tensor) -> torch.Tensor:\n    return torch.tahn(x)\n"
        "takes_nothing.samples(lambda make: iter([(make(3),)]))\n"
        "takes_nothing.kernel('cpu', ow.Domain(dtypes=ow.FLOATING))(lambda x: torch.tanh(x))\n"
    )
    report = ow.check(ow.load(tmp_path / "op.py").takes_nothing)
    assert not report.passed
    assert "tahn" in str(report)


@pytest.mark.parametrize("declared", [True, False])
def test_an_order_of_additions_that_changes_is_for_determinism_alone_to_judge(declared: bool) -> None:
    @ow.op(name=f"alarm_shuffled_{declared}", deterministic=not declared)
    def shuffled(x: Tensor) -> Tensor:
        return x.sum(-1)

    @shuffled.kernel("cpu", ow.Domain(dtypes=(torch.float32,)))
    def _(x: Tensor) -> Tensor:
        order = random.sample(range(x.shape[-1]), x.shape[-1])
        return x[..., order].sum(-1)

    @shuffled.samples
    def _(make: ow.Maker) -> Iterator[Tensor]:
        yield make(3, 2000)

    report = ow.check(shuffled, only=["determinism", "memory", "state"], rung=shuffled.name)
    failed = {f.property for f in report.failures}
    assert failed == (set() if declared else {"determinism"}), report
    assert not any("initialised" in f.message for f in report.failures)


def test_zeros_without_memory_are_not_read() -> None:
    """The gradient of sgn is a tensor of PyTorch's that has none: to read it ends the process."""

    @ow.op
    def alarm_sgn(x: Tensor) -> Tensor:
        return x.abs() * 2

    @alarm_sgn.gradient
    def _(grad: Tensor, x: Tensor) -> Tensor:
        return 2 * grad * x.sgn()

    @alarm_sgn.samples
    def _(make: ow.Maker) -> Iterator[Tensor]:
        yield make(5)

    report = ow.check(alarm_sgn, only=["gradients"])
    assert report.passed, report


def test_integers_beside_numbers_are_no_fault_of_their_order() -> None:
    @ow.op(opaque=True)
    def alarm_codes(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.detach().round().long(), x * 2

    @alarm_codes.samples
    def _(make: ow.Maker) -> Iterator[Tensor]:
        if make.dtype.is_floating_point:
            yield make(5)

    report = ow.check(alarm_codes, only=["opcheck"])
    assert report.passed, report
    assert report.cases


@ow.op
def alarm_turn(x: Tensor, by: int = 5) -> Tensor:
    return x * (by % 32)


@alarm_turn.kernel("cpu")
def _(x: Tensor, by: int) -> Tensor:
    return x * (by % 32)


@alarm_turn.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5), 3


def test_integers_beyond_64_bits_are_no_call() -> None:
    report = ow.check(alarm_turn, only=["rejects"])
    assert report.passed, report


def test_what_an_infinity_less_another_is_says_nothing_in_float64() -> None:
    """A kernel with fma gives a number there, or an infinity; elsewhere it must give what the reference gives."""
    nan, inf = torch.nan, torch.inf
    reference = torch.tensor([nan, inf, 1.0], dtype=torch.float64)
    told = special.told(torch.tensor([-inf, inf, 1.0], dtype=torch.float64), reference)
    torch.testing.assert_close(told, reference, equal_nan=True)
    told = special.told(torch.tensor([nan, 0.0, 1.0], dtype=torch.float64), reference)
    assert told is not None
    assert told[1] == 0


@pytest.mark.parametrize("wrong", [False, True])
def test_one_tensor_for_two_arguments_is_as_good_as_two(wrong: bool) -> None:
    @ow.op(name=f"alarm_twice_{wrong}")
    def twice(x: Tensor, y: Tensor) -> Tensor:
        return x * 2 + y

    @twice.kernel("cpu")
    def _(x: Tensor, y: Tensor) -> Tensor:
        return x * 2 if wrong and x.data_ptr() == y.data_ptr() else x * 2 + y

    @twice.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(5), make(5)

    report = ow.check(twice, only=["state"])
    assert report.passed is not wrong, report
    assert not wrong or "one tensor for several arguments" in str(report)


def test_a_case_takes_no_more_memory_than_it_is_worth() -> None:
    """An option may say how many times as large the result is, and a gradient is computed from its operator's."""

    @ow.op
    def alarm_larger(x: Tensor, times: int = 2) -> Tensor:
        ow.require(x.dim() == 4 and times > 0, "x must be an image")
        return x.repeat_interleave(times, 2).repeat_interleave(times, 3)

    x = torch.zeros(1, 129, 130, 130)
    small = Case(0, torch.float32, variant="tail", values="times=2")
    with pytest.raises(NotApplicable, match="take long"):
        afford.enough(alarm_larger, ow.Sample((x, 9)), small)
    afford.enough(alarm_larger, ow.Sample((x[:, :2, :9, :9], 9)), small)


def test_what_rounding_alone_decides_says_nothing() -> None:
    def steps(sample: ow.Sample) -> list[Tensor | None]:
        x = sample.args[0]
        for _ in range(80):
            x = 3.9 * x * (1 - x)  # which is chaotic
        return [x]

    chaos = Oracle(steps, ow.Sample((torch.linspace(0.1, 0.9, 50),)))
    assert chaos.chaotic(0)
    case = Case(0, torch.float32, values="2^4")
    with pytest.raises(NotApplicable, match="rounding errors alone"):
        calls.judge(chaos, [torch.full((50,), 1e9)], case)
    with pytest.raises(Finding, match="shape"):  # which no rounding decides
        calls.judge(chaos, [torch.zeros(49)], case)
    plain = Oracle(lambda sample: [sample.args[0].exp()], ow.Sample((torch.linspace(-3, 3, 50),)))
    assert not plain.chaotic(0)


@pytest.mark.parametrize("near", [True, False])
def test_what_overflows_in_sizes_that_nobody_chose_must_do_so_alone(near: bool) -> None:
    x = torch.tensor([2.0**12 if near else 1.0, 3.0], dtype=torch.float16)
    oracle = Oracle(lambda sample: [sample.args[0] * 8 * 0.125], ow.Sample((x,)))
    grown: list[Tensor | None] = [torch.tensor([torch.inf, 3], dtype=torch.float16)]  # 32 at once, say
    with pytest.raises(NotApplicable if near else Finding):
        calls.judge(oracle, grown, Case(0, torch.float16, variant="tail"))
    with pytest.raises(Finding, match="finite"):
        calls.judge(oracle, grown, Case(0, torch.float16))
