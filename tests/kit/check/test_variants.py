"""What the check tries beyond an author's samples: numbers, sizes, indices and options; and how exactly it judges."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.check import options, sizes, values
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.constants import Constants, constants_of, in_source
from opwright.kit.check.properties import forward
from opwright.kit.check.report import Failure, Finding, NotApplicable, Report, Result
from opwright.kit.truth.oracle import Oracle

# --- where a kernel's branches turn ---------------------------------------------------------------------------------


def test_numbers_are_read_from_a_source_and_not_from_its_comments() -> None:
    source = b"""
#include <array2000.h>
// 17 is not one, nor is "18"
constexpr int64_t block = 4'096, flags = 0x40; /* 19 */
if (n64 > 1u << 20 && x < 1.5e-3f) return s("21 \\" 22") + .25;
"""
    assert in_source(source) == [4096, 64, 1, 20, 0.0015, 0.25, 1 << 20]


def test_a_kernel_in_python_has_constants_too() -> None:
    @ow.op
    def with_constants(x: Tensor) -> Tensor:
        return x + 1

    @with_constants.kernel("cpu")
    def _(x: Tensor) -> Tensor:
        return x + 1 if x.numel() < 777 else x.add(1).mul(1 + 1e-30)

    found = constants_of(with_constants, "cpu")
    assert 777 in found.whole
    assert constants_of(with_constants, "cuda") == Constants()


def test_every_constant_becomes_a_size_in_every_place() -> None:
    found = list(sizes.around((1, 64, 4096, 1 << 30), 2, 100, random.Random(0)))
    assert {sizes.at(i, c) for i in range(2) for c in (64, 65, 4096, 4097)} <= set(found)
    assert not any(v[-2:] == "=1" or str(1 << 30) in v for v in found)
    for variant in found:
        chosen = sizes.choose_sizes([3, 5], variant, random.Random(1))
        assert max(chosen.values()) == int(variant.partition("=")[2])
        assert min(chosen.values()) <= 4


def test_a_branch_on_a_size_is_found_with_every_seed() -> None:
    @ow.op
    def branches(x: Tensor) -> Tensor:
        return x + 1

    @branches.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(3, 5)

    @branches.kernel("cpu")
    def _(x: Tensor) -> Tensor:
        return x + (2 if x.shape[-1] == 1234 else 1)

    for seed in range(3):
        report = ow.check(branches, only=["forward"], seed=seed, rung="branches")
        assert any("s1=1234" in f.sample for f in report.failures), report


# --- other values ---------------------------------------------------------------------------------------------------


@ow.op
def variants_bag(weight: Tensor, index: Tensor, offsets: Tensor, *, ignore: int = -7) -> Tensor:
    return torch.nn.functional.embedding_bag(index, weight, offsets, mode="sum")


def changed(variant: str, *args: Any, seed: int = 0) -> list[Any]:
    change = values.Change(variants_bag, torch.float32, variant, Constants((100,), (0.5,)), random.Random(seed))
    return list(change.of(ow.Sample(args)).args)


BAG = (torch.rand(10, 4), torch.tensor([3, 0, 0, 9, 5, 1]), torch.tensor([0, 2, 5]))


@pytest.mark.parametrize("variant", values.INDEX)
def test_offsets_stay_in_order_whatever_happens_to_indices(variant: str) -> None:
    for seed in range(20):
        _, index, offsets = changed(variant, *BAG, seed=seed)
        assert offsets.tolist() == sorted(offsets.tolist())
        assert (offsets[0], offsets[-1]) == (0, 5)
        assert index.shape == (6,)


@pytest.mark.parametrize("variant", [*values.FLOATS, "2^30", "2^-30"])
def test_numbers_change_and_the_rest_does_not(variant: str) -> None:
    weight, index, offsets = changed(variant, *BAG)
    assert weight.dtype == torch.float32
    assert bool(weight.isfinite().all())
    assert not torch.equal(weight, BAG[0])
    assert index is BAG[1]
    assert offsets is BAG[2]


@pytest.mark.parametrize("variant", values.WHOLE)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_integers_are_drawn_over_their_range(variant: str, dtype: torch.dtype) -> None:
    drawn = values.whole(torch.ones(4, 50, dtype=dtype), variant, random.Random(0))
    assert (drawn.shape, drawn.dtype) == ((4, 50), dtype)
    info = torch.iinfo(dtype)
    if variant in ("ends", "most"):
        assert int(drawn.max()) == info.max
    if variant == "range":
        assert int(drawn.max()) > info.max // 4


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_integers_are_data_where_larger_ones_give_results_alike(shape: tuple[int, ...]) -> None:
    x = ow.Sample((torch.ones(shape, dtype=torch.int64),))
    assert values.is_data(lambda s: s.args[0] * 2, x, torch.int64)
    assert values.is_data(lambda s: (s.args[0], s.args[0].sum()), x, torch.int64)
    assert not values.is_data(lambda s: torch.arange(5)[s.args[0]], x, torch.int64)
    assert not values.is_data(lambda s: torch.zeros(int(s.args[0].sum())), x, torch.int64)


def test_what_was_written_out_is_fitted_to_other_sizes() -> None:
    made = [torch.rand(17, 6)]
    sample = ow.Sample((made[0], torch.tensor([3, 0, 9, 5]), torch.tensor([0, 2])))
    fitted = values.refit(sample, variants_bag, {10: 6, 4: 7}, made)
    assert fitted.args[1].tolist() == [3, 0, 3, 5, 3, 0, 3]


def test_options_are_set_and_lists_lengthened() -> None:
    @ow.op
    def variants_of_options(
        xs: list[Tensor], bias: Tensor | None = None, *, flip: bool = False, a: float = 2.0
    ) -> Tensor:
        return torch.stack(xs).sum(0) * a

    sample = ow.Sample(([torch.ones(2)] * 3, torch.ones(2)))
    found = [*options.options_of(variants_of_options, sample)]
    numbers = ["a=0", "a=1", "a=-1", "a=5e-1", "a=25e-1", "a=-3e-1"]
    assert found == ["xs*1", "xs*5", "xs*9", "xs*17", "bias=None", "flip=True", *numbers]
    for variant in found:
        change = values.Change(variants_of_options, torch.float32, variant, Constants(), random.Random(0))
        given = variants_of_options.signature.bind(*(lambda s: (s.args, s.kwargs))(change.of(sample)))
        name, _, value = variant.replace("*", "=*").partition("=")
        got = f"*{len(given[name])}" if value[0] == "*" else given[name]
        assert got == (float(value) if name == "a" else {"None": None, "True": True}.get(value, value)), variant


def test_a_case_says_what_was_changed_and_comes_again() -> None:
    case = Case(1, torch.float32, variant="tail", values="2^7")
    assert case.id == "1-tail+2^7.float32.plain"
    first, second = (Subject(ow.axpby, seed=3).draw(case) for _ in range(2))
    assert torch.equal(first.args[0], second.args[0])
    tried = next(c for c in Subject(ow.axpby, seed=3).cases() if c.variant and c.values)
    report = ow.check(ow.axpby, only=["forward"], case=f"axpby:{tried.id}", seed=3)
    assert (report.cases, report.passed) == (1, True)


def test_a_sample_without_other_sizes_is_told_of(tmp_path: Path) -> None:
    @ow.op
    def fixed_sizes(x: Tensor, y: Tensor) -> Tensor:
        ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")
        return x + y

    @fixed_sizes.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(5), torch.arange(5.0)

    @fixed_sizes.kernel("cpu")
    def _(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    report = ow.check(fixed_sizes, only=["forward"])
    assert any("sample 0 was tried in its own sizes alone" in note for note in report.notes), report
    assert not ow.check(ow.cube, only=["forward"]).notes


# --- judgement ------------------------------------------------------------------------------------------------------


def test_ties_are_judged_to_the_integer() -> None:
    x = torch.tensor([0.25, 0.75, 1.25, 0.3])
    oracle = Oracle(lambda s: [torch.round(s.args[0] / 0.5).to(torch.int64)], ow.Sample((x,)))
    oracle.judge([torch.tensor([0, 2, 2, 1])])
    with pytest.raises(Finding, match="wrong in 2 of 4"):
        oracle.judge([torch.tensor([1, 2, 3, 1])])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_addends_may_lose_the_same_each_time(dtype: torch.dtype) -> None:
    x = torch.tensor([0.1], dtype=dtype).expand(6000)
    one_by_one = torch.zeros((), dtype=dtype)
    for v in x:
        one_by_one += v
    oracle = Oracle(lambda s: [s.args[0].sum()], ow.Sample((x,)))
    assert one_by_one != x.sum()
    oracle.judge([one_by_one])
    with pytest.raises(Finding):
        oracle.judge([x.sum() * (1 + 60_000 * torch.finfo(dtype).eps)])


def test_exact_sums_are_exact() -> None:
    x = torch.arange(100.0)
    oracle = Oracle(lambda s: [(s.args[0].sum() / 2).floor()], ow.Sample((x,)))
    oracle.judge([torch.tensor(2475.0)])
    with pytest.raises(Finding):
        oracle.judge([torch.tensor(2474.0)])


def test_subnormal_steps_lose_their_smallest_numbers() -> None:
    tiny = torch.tensor([3e-44, 5e-44])
    oracle = Oracle(lambda s: [(s.args[0] * 0.3) * 1e30], ow.Sample((tiny,)))
    oracle.judge([((tiny.double() * 0.3) * 1e30).float()])
    oracle.judge([(tiny * 0.3) * 1e30])
    with pytest.raises(Finding):
        oracle.judge([(tiny * 0.3) * 3e30])


def test_where_the_reference_leaves_its_range_nothing_is_said() -> None:
    large = torch.full((4,), 3e38)
    assert not Oracle(lambda s: [s.args[0].sum() / 4], ow.Sample((large,))).fits
    assert Oracle(lambda s: [torch.softmax(s.args[0], -1)], ow.Sample((large * 1e-33,))).fits


# --- no end without a report ----------------------------------------------------------------------------------------


def test_a_domain_of_small_integers_alone_is_checked() -> None:
    @ow.op
    def small_integers(x: Tensor) -> Tensor:
        ow.require(x.dtype == torch.int8, "x must be int8, got {x.dtype}")
        return x * 2

    @small_integers.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(5, dtype=torch.int8)

    @small_integers.kernel("cpu", ow.Domain(dtypes=(torch.int8,)))
    def _(x: Tensor) -> Tensor:
        return x + x

    report = ow.check(small_integers, only=["forward", "memory", "state"])
    assert report.passed, report
    assert {r.property for r in report.results if r.cases} == {"forward", "memory", "state"}


def test_a_gradient_with_a_result_too_few_is_told() -> None:
    @ow.op
    def too_few(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @too_few.gradient
    def _(grad: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor]:
        return (grad * y,)

    @too_few.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(3), make(3)

    too_few.kernel("cpu")(lambda x, y: x * y)
    report = ow.check(too_few, only=["forward", "gradients", "memory", "undefined"])
    assert not report.passed
    assert any(r.cases and r.passed for r in report.results), report


def test_an_error_of_the_tool_is_a_failure_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(subject: Subject) -> Iterator[Case]:
        raise IndexError("cannot choose from an empty sequence")

    monkeypatch.setenv("OPWRIGHT_CHECK_HERE", "1")
    monkeypatch.setattr(forward, "cases", broken)
    report = ow.check(ow.cube, only=["forward", "special"], rung="cube")
    [failure] = report.failures
    assert failure.property == "forward"
    assert "the check itself failed" in failure.message
    assert "cannot choose from an empty sequence" in failure.message
    assert any(r.property == "special" and r.passed and r.cases for r in report.results)


def test_one_mistake_is_told_once_with_all_that_it_stopped() -> None:
    def failure(name: str, message: str) -> Failure:
        return Failure(name, "op", "float32", "plain", "0", message)

    told = [failure("forward", "it raised E: 3"), failure("fake", "it raised E: 4"), failure("memory", "wrong in 3")]
    report = Report([Result("op", f.property, 1, [f]) for f in told], 0, "cpu")
    assert [(f.message, more) for f, more in report.mistakes] == [
        ("it raised E: 3; also in fake", 1),
        ("wrong in 3", 0),
    ]


def test_an_operator_may_be_declared_not_deterministic() -> None:
    def make_op(deterministic: bool) -> ow.Op[..., Any]:
        calls = itertools.count()

        @ow.op(name=f"any_order_{deterministic}", deterministic=deterministic)
        def op(x: Tensor) -> Tensor:
            return x.sum()

        @op.samples
        def _(make: ow.Maker) -> Iterator[Any]:
            yield make(300)

        @op.kernel("cpu", ow.Domain(dtypes=(torch.float32,)))
        def _(x: Tensor) -> Tensor:
            total = x.sum()
            return torch.nextafter(total, total + 1) if next(calls) % 2 else total

        return op

    assert not ow.check(make_op(True), only=["determinism"], rung="any_order_True").passed
    report = ow.check(make_op(False), only=["determinism", "memory"], rung="any_order_False")
    assert report.passed, report
    assert not make_op(False).backward.deterministic


def test_nothing_to_change_is_not_a_case() -> None:
    with pytest.raises(NotApplicable, match="nothing of it to change"):
        changed("2^3", torch.ones(2, dtype=torch.int64))


def test_a_number_that_a_dtype_does_not_hold_is_rounded_before_it_multiplies() -> None:
    """0.1 · x may look exact in float64; a kernel that rounds once is right all the same."""

    def reference(sample: ow.Sample) -> list[Tensor | None]:
        a, x = sample.args
        return [a + 0.1 * x]

    a, x = torch.tensor([0.14969682693481445]), torch.tensor([-1.4978653192520142])
    once = (a.double() + float(torch.tensor(0.1)) * x.double()).float()  # as a fused multiply-add has it
    assert once != reference(ow.Sample((a, x)))[0]
    Oracle(reference, ow.Sample((a, x))).judge([once])
    with pytest.raises(Finding, match="off by"):
        Oracle(reference, ow.Sample((a, x))).judge([once + 1e-6])


def test_what_an_operator_writes_is_not_what_its_reference_starts_from() -> None:
    """The reference may be asked again after the kernel has run, where that rounds otherwise."""
    from opwright.kit.check.properties import special

    @ow.op(name="grown", namespace="written_twice", mutates=("x",))
    def grown(x: Tensor, y: Tensor) -> None:
        x.copy_(x + 0.1 * (y - x))

    @grown.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(64), make(64)

    @grown.kernel("cpu")
    def kernel(x: Tensor, y: Tensor) -> None:
        x.copy_(x.double() + 0.1 * (y.double() - x.double()))

    subject = Subject(grown, "cpu")
    for case in special.cases(subject):
        if case.extra in ("large", "subnormal"):
            special.check(subject, case)


@pytest.mark.parametrize("seed", range(3))
def test_a_sum_that_is_kept_in_half_precision_is_found_where_it_stops_growing(seed: int) -> None:
    @ow.op(name=f"kept_in_half_{seed}")
    def kept_in_half(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.t()

    @kept_in_half.kernel("cpu", ow.Domain(dtypes=ow.FLOATING, sizes="x[b, k] weight[n, k]"))
    def _(x: Tensor, weight: Tensor) -> Tensor:
        if x.dtype != torch.bfloat16:
            return x @ weight.t()
        total = torch.zeros(x.shape[0], weight.shape[0], dtype=x.dtype)
        for k in range(x.shape[1]):
            total += x[:, k : k + 1] * weight[:, k]
        return total

    @kept_in_half.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(3, 8), make(5, 8)

    report = ow.check(kept_in_half, only=["forward"], seed=seed, rung=kept_in_half.name)
    assert any(f.dtype == "bfloat16" and "+abs" in f.sample for f in report.failures), report
