"""Options that no sample has: the numbers of a kernel's source, several at once, and what stands among integers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.check import afford, options
from opwright.kit.check.cases import Case
from opwright.kit.check.constants import Constants
from opwright.kit.check.report import NotApplicable, Report


def tried(report: Report) -> set[str]:
    """The cases that failed, by what was changed in them."""
    return {f.sample.partition(":")[0] for f in report.failures}


@pytest.mark.parametrize("seed", range(3))
def test_a_branch_on_an_option_is_found_by_the_number_in_the_source(seed: int) -> None:
    @ow.op(name=f"warms_up_{seed}")
    def warms_up(x: Tensor, *, step: int = 1) -> Tensor:
        return x / (1 + step)

    @warms_up.kernel("cpu")
    def _(x: Tensor, *, step: int = 1) -> Tensor:
        return x / (1 + min(step, 1000))

    @warms_up.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(5), {"step": 3}

    said = tried(ow.check(warms_up, only=["forward"], seed=seed, rung=warms_up.name))
    assert said == {"0+step=1001e0"}


def test_a_branch_on_an_option_that_is_no_integer_is_found() -> None:
    @ow.op
    def clipped_rate(x: Tensor, *, rate: float = 0.1) -> Tensor:
        return x * rate

    @clipped_rate.kernel("cpu")
    def _(x: Tensor, *, rate: float = 0.1) -> Tensor:
        return x * min(rate, 37.5)

    @clipped_rate.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(5)

    assert tried(ow.check(clipped_rate, only=["forward"], rung="clipped_rate")) == {"0+rate=46875e-3"}


def test_options_that_go_wrong_together_are_found() -> None:
    @ow.op
    def both_flags(x: Tensor, *, flip: bool = False, centre: bool = False) -> Tensor:
        x = x.flip(-1) if flip else x
        return x - x[..., :1] if centre else x * 1

    @both_flags.kernel("cpu")
    def _(x: Tensor, *, flip: bool = False, centre: bool = False) -> Tensor:
        y = x.flip(-1) if flip else x
        return y - x[..., :1] if centre else y * 1

    @both_flags.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(3, 5)

    assert tried(ow.check(both_flags, only=["forward"], rung="both_flags")) == {"0+flip=True+centre=True"}


@ow.op
def mean_of_rows(table: Tensor, ids: Tensor, *, padding: int = -1) -> Tensor:
    """The means of the rows at ids; those that are padding do not count."""
    ow.require(table.is_floating_point() and table.dim() == 2 and ids.dim() == 2, "table and ids must be matrices")
    kept = ids != padding
    inside = (ids >= 0) & (ids < table.shape[0])
    ow.require(bool(inside[kept].all()), "ids must be rows of the table")
    found = table[ids.clamp(min=0)] * kept.unsqueeze(-1)
    return found.sum(1) / kept.sum(1, keepdim=True).clamp(min=1)


@mean_of_rows.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(6, 3), torch.tensor([[0, 5, -1], [2, 2, 2]], device=make.device)


@mean_of_rows.kernel("cpu", ow.Domain(mixed=True))
def _(table: Tensor, ids: Tensor, *, padding: int = -1) -> Tensor:
    kept = ids != padding
    found = table[ids.clamp(min=0)] * kept.unsqueeze(-1)
    return found.sum(1) / (ids >= 0 if padding <= 0 else kept).sum(1, keepdim=True).clamp(min=1)


def test_a_number_that_stands_among_integers_changes_with_them() -> None:
    """Alone it leads nowhere: the reference rejects the -1 that is no padding then."""
    assert "0+padding==0" in tried(ow.check(mean_of_rows, only=["forward"], rung="mean_of_rows"))

    table, ids = torch.rand(6, 3), torch.tensor([[0, 5, -1], [2, -1, 2]])
    found = [*options.standing_of(mean_of_rows, ow.Sample((table, ids)))]
    assert found == ["padding==0", "padding==1"]
    assert [*options.standing_of(mean_of_rows, ow.Sample((table, ids.abs())))] == []
    assert options.followed([ids, table], -1, 7)[0].tolist() == [[0, 5, 7], [2, 7, 2]]
    assert options.followed([ids, table], -1, 7)[1] is table


def test_an_option_that_asks_for_many_steps_is_not_paid_for() -> None:
    calls = itertools.count()

    @ow.op
    def many_steps(x: Tensor, steps: int = 3) -> Tensor:
        next(calls)
        for _ in range(steps):
            x = x * 0.5
        return x * 1

    sample = ow.Sample((torch.ones(3), 5000))
    with pytest.raises(NotApplicable, match="take long"):
        afford.enough(many_steps, sample, Case(0, torch.float32, values="steps=5000e0"))
    assert next(calls) == 1
    afford.enough(many_steps, sample, Case(0, torch.float32, values="steps=64e0"))
    assert next(calls) == 2


def test_numbers_of_a_source_become_options_within_reason() -> None:
    given = Constants((1, 2, 4096, 1 << 30), (0.5, 1e-30))
    found = [*options.named_of(mean_of_rows, ow.Sample((torch.rand(2, 2), torch.ones(1, 1).long())), given)]
    assert found == ["padding=4096e0", "padding=4097e0"]


def test_lists_of_numbers_come_in_another_order_and_count_from_the_end() -> None:
    @ow.op
    def mean_along(x: Tensor, dims: list[int]) -> Tensor:
        return x.mean(dims)

    @mean_along.kernel("cpu", ow.Domain(dtypes=(torch.float32,)))
    def _(x: Tensor, dims: list[int]) -> Tensor:
        for d in sorted(dims, reverse=True):
            x = x.mean(d)
        return x

    @mean_along.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(3, 4, 5), [1, 2]

    assert "0+dims=turned" in tried(ow.check(mean_along, only=["forward"], rung="mean_along"))

    @ow.op
    def blend(xs: list[Tensor], weights: list[float]) -> Tensor:
        return torch.stack([x * w for x, w in zip(xs, weights, strict=True)]).sum(0)

    @blend.kernel("cpu", ow.Domain(dtypes=(torch.float32,)))
    def _(xs: list[Tensor], weights: list[float]) -> Tensor:
        return torch.stack([x * w for x, w in zip(xs, sorted(weights), strict=True)]).sum(0)

    @blend.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield [make(3), make(3)], [1.0, 3.0]

    assert "0+weights=reversed" in tried(ow.check(blend, only=["forward"], rung="blend"))


# --- gradients where formulas choose or divide ----------------------------------------------------------------------


@pytest.mark.parametrize("with_kernel", [False, True])
def test_a_formula_that_divides_by_what_may_be_zero_is_found(with_kernel: bool) -> None:
    @ow.op(name=f"product_of_rows_{with_kernel}")
    def product(x: Tensor) -> Tensor:
        ow.require(x.is_floating_point() and x.dim() > 0, "x must be floating-point and have rows")
        return x.prod(-1)

    @product.gradient
    def _(grad: Tensor, x: Tensor, result: Tensor) -> Tensor:
        return (grad * result).unsqueeze(-1) / x

    @product.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(3, 4)

    if with_kernel:
        product.kernel("cpu", ow.Domain(dtypes=(torch.float64,)))(lambda x: torch.prod(x, -1))
    for seed in range(3):
        said = tried(ow.check(product, only=["gradients"], seed=seed, rung=product.name))
        assert said & {"0+halves", "0+zeros"}, seed


def test_a_formula_that_fails_at_one_option_and_zero_is_found() -> None:
    @ow.op
    def power_of(x: Tensor, *, p: float = 2.0) -> Tensor:
        ow.require(x.is_floating_point(), "x must be floating-point")
        return torch.pow(x.abs(), p)

    @power_of.gradient
    def _(grad: Tensor, x: Tensor, p: float) -> Tensor:
        return grad * p * x.abs().pow(p - 1) * x.sign()

    @power_of.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(7)
        yield make(3, 4), {"p": 3.0}

    said = {name for seed in range(3) for name in tried(ow.check(power_of, only=["gradients"], seed=seed))}
    assert any("+p=0+zeros" in name for name in said), said


# --- integers -------------------------------------------------------------------------------------------------------


def test_integers_that_differ_in_their_upper_half_alone_are_told_apart() -> None:
    @ow.op
    def starts_of_runs(x: Tensor) -> Tensor:
        ow.require(x.dtype == torch.int64 and x.dim() == 1, "x must be a vector of int64")
        return torch.cat((torch.ones_like(x[:1], dtype=torch.bool), x[1:] != x[:-1]))

    @starts_of_runs.kernel("cpu", ow.Domain(dtypes=(torch.int64,)))
    def _(x: Tensor) -> Tensor:
        return torch.cat((torch.ones_like(x[:1], dtype=torch.bool), (x[1:] - x[:-1]).to(torch.int32) != 0))

    @starts_of_runs.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield (torch.tensor([3, 3, 1, 1, 1, 0, 0, 2], device=make.device),)

    for seed in range(3):
        assert "0+folded" in tried(ow.check(starts_of_runs, only=["forward"], seed=seed, rung="starts_of_runs")), seed
