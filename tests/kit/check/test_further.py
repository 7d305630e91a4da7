"""What the check tries beyond one change at a time, and what it does not take for a mistake."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.check import sizes, values
from opwright.kit.check.constants import Constants
from opwright.kit.check.judge.numbers import numbers_of
from opwright.kit.truth.oracle import Finding, Oracle
from tests.kit.check import candidates

ROWS = [(torch.linspace(-3, 3, 28).reshape(4, 7),)]


def judged(candidate: Any, like: Any, samples: Any = ROWS, **options: Any) -> Any:
    return ow.check(candidate, like=like, samples=samples, **options)


def named(variant: str) -> dict[str, int]:
    return {place: int(size) for place, _, size in (part.partition("=") for part in variant.split(","))}


# --- several sizes at once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_all_sizes_are_large_at_once_by_multiples_of_a_tile_and_by_none(seed: int) -> None:
    found = [named(v) for v in sizes.together([3, 4, 5], [(3, 4), (4, 5)], random.Random(seed))]
    assert any(len(f) == 3 and all(size % 32 == 0 for size in f.values()) for f in found)
    assert any(len(f) == 3 and all(size % 2 for size in f.values()) for f in found)
    assert any(len(f) == 2 and min(f.values()) > 48 for f in found)
    assert all(len({*f.values()}) == len(f) for f in found)


def test_two_sizes_lie_beyond_every_constant_of_a_kernel() -> None:
    found = [named(v) for v in sizes.tiles([3, 5], [(3, 5)], [2, 48, 200], 100, random.Random(0))]
    assert {"s0": 49, "s1": 50} in found
    assert {"s0": 201, "s1": 202} in found
    assert any(f["s0"] % 48 == 0 and f["s1"] % 48 == 0 for f in found)


def test_no_tensor_becomes_too_large() -> None:
    shapes = [(3, 4, 5, 6), (6, 3)]
    for variant in sizes.together([3, 4, 5, 6], shapes, random.Random(0)):
        chosen = [4] * 4
        for place, size in named(variant).items():
            chosen[int(place[1:])] = size
        assert chosen[0] * chosen[1] * chosen[2] * chosen[3] <= sizes.MOST_TOGETHER


@pytest.mark.parametrize("which", range(3))
def test_every_size_is_zero_once_with_every_seed(which: int) -> None:
    @ow.op(name=f"no_empty_{which}")
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    @doubled.kernel("cpu")
    def _(x: Tensor) -> Tensor:
        if x.shape[which] == 0:
            raise RuntimeError("invalid configuration argument")
        return x * 2

    doubled.samples(lambda make: iter([(make(2, 3, 4),)]))
    for seed in range(4):
        report = ow.check(doubled, only=["forward"], rung=doubled.name, seed=seed)
        assert any("invalid configuration" in f.message for f in report.failures), (seed, report)


def test_a_branch_on_two_sizes_is_found_with_every_seed() -> None:
    def product(a: Tensor, b: Tensor) -> Tensor:
        out = a @ b
        if min(out.shape) > 40:
            out[40:, 40:] = 0
        return out

    samples = [(torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(-1, 1, 20).reshape(4, 5))]
    for seed in range(3):
        report = judged(product, torch.mm, samples, only=["forward"], seed=seed)
        assert not report.passed
        assert report.verdict.cls == "wrong values"


# --- numbers, masks, shapes and options -----------------------------------------------------------------------------


def changed(variant: str, *given: Any, **more: Any) -> Any:
    parameters = ", ".join(f"x{i}: Tensor" for i in range(len(given)))
    scope: dict[str, Any] = {"Tensor": Tensor}
    exec(f"def further({parameters}) -> Tensor: return x0", scope)
    op = ow.op(scope["further"])
    return values.Change(op, torch.float32, variant, Constants(), random.Random(0)).of(ow.Sample(given, more)).args


def test_complex_numbers_are_scaled_too() -> None:
    z = torch.randn(3, 4, dtype=torch.complex64)
    assert torch.equal(changed("2^20", z)[0], z * 2**20)


def test_masks_are_all_of_one_kind_or_have_an_empty_row() -> None:
    mask = torch.ones(4, 5, dtype=torch.bool)
    assert not changed("false", torch.ones(4, 5), mask)[1].any()
    assert changed("true", torch.ones(4, 5), ~mask)[1].all()
    assert changed("rowless", torch.ones(4, 5), mask)[1].any(-1).sum() == 3


def test_one_tensor_is_thinner_than_the_sample_has_it() -> None:
    assert changed("thin:x1:1", torch.ones(4, 5), torch.ones(4, 5))[1].shape == (4, 1)
    assert changed("thin:x0:", torch.ones(4, 5), torch.ones(4, 5))[0].shape == (5,)


def test_bytes_are_drawn_over_their_range_beside_numbers_of_another_dtype() -> None:
    codes = changed("most:int8", torch.ones(4), torch.zeros(4, dtype=torch.int8), torch.zeros(4, dtype=torch.int64))
    assert (codes[1] == 127).all()
    assert not codes[2].any()


def test_a_candidate_may_refuse_shapes_that_broadcast_and_not_misread_them() -> None:
    def strict(x: Tensor, y: Tensor) -> Tensor:
        assert x.shape == y.shape
        return x + y

    def flat(x: Tensor, y: Tensor) -> Tensor:
        if x.shape == y.shape:
            return x + y
        wide = torch.broadcast_shapes(x.shape, y.shape)
        every = torch.arange(wide.numel())
        return (x.flatten()[every % x.numel()] + y.flatten()[every % y.numel()]).reshape(wide)

    for variant in ("0+thin:input:1.float32.plain", "0+thin:other:1.float32.plain"):
        samples = [(torch.arange(15.0).reshape(3, 5), torch.arange(15.0).reshape(3, 5))]

        def add(input: Tensor, other: Tensor) -> Tensor:
            return input + other

        report = judged(strict, add, samples, only=["forward"], case=variant)
        assert report.passed, report
        assert judged(flat, add, samples, only=["forward"], case=variant).verdict.cls == "wrong values"


def test_options_that_no_sample_gives_are_tried() -> None:
    def plain(x: Tensor, eps: float = 1e-6, how: Literal["mean", "max"] = "mean") -> Tensor:
        return (x.mean(-1) if how == "mean" else x.amax(-1)) + eps

    def fixed(x: Tensor, eps: float = 1e-6, how: str = "mean") -> Tensor:
        return plain(x, 1e-6, "max" if how == "max" else "mean")

    def reduced(x: Tensor, eps: float = 1e-6, how: str = "mean") -> Tensor:
        return plain(x, eps)

    assert judged(fixed, plain, only=["forward"], case="0+eps=25e-1.float32.plain").verdict.cls == "wrong values"
    assert judged(reduced, plain, only=["forward"], case="0+how=max.float32.plain").verdict.cls == "wrong values"
    assert judged(lambda x: plain(x), plain, only=["forward"], case="0+eps=0.float32.plain").passed


def test_numbers_are_those_of_what_a_candidate_is_made_of(tmp_path: Path) -> None:
    file = tmp_path / "written.py"
    file.write_text('SOURCE = "if (n > 1536) return;"\nLIMIT = 96\n\n\ndef other():\n    return 777\n\n\n'
                    "def kernel(x):\n    return run(SOURCE, x, LIMIT)\n")  # fmt: skip
    assert numbers_of(f"{file}:kernel").whole == (96, 1536)
    assert 777 in numbers_of(f"{file}:missing").whole


# --- gradients and state --------------------------------------------------------------------------------------------

GRADIENTS = {
    "clips_gradients": ("large", "wrong gradient"),
    "frozen_neighbour": ("last", "wrong gradient"),
    "spends_its_gradient": ("again", "wrong gradient"),
    "overwrites_incoming": ("dense", "out of bounds"),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_wrong_in_more_ways_than_one(name: str) -> None:
    extra, cls = GRADIENTS[name]
    samples = candidates.PAIRS if name == "frozen_neighbour" else ROWS
    like = torch.mul if name == "frozen_neighbour" else candidates.plain_square
    report = judged(f"{candidates.__name__}:{name}", like, samples, only=["gradients"], case=f"0.float32.plain.{extra}")
    assert report.verdict.cls == cls


@pytest.mark.parametrize(
    ("name", "says"),
    [("reseeds", "the state of the random number generator"), ("sets_dtype", "the default dtype")],
)
def test_a_call_that_leaves_the_process_changed_is_told(name: str, says: str) -> None:
    report = judged(
        f"{candidates.__name__}:{name}", candidates.plain_double, only=["state"], case="0.float32.plain.around"
    )
    assert report.verdict.cls == "cheats"
    assert says in report.verdict.message


def test_functions_that_write_are_called_many_times_and_at_once() -> None:
    wrong = judged(
        f"{candidates.__name__}:writes_and_counts", candidates.plain_twice_, only=["state"], case="0.float32.plain.many"
    )
    assert wrong.verdict.cls == "cheats"
    for only, case in (("state", "0.float32.plain.many"), ("threads", "0.float32.plain.callers")):
        report = judged(candidates.in_place, candidates.plain_twice_, only=[only], case=case)
        assert report.passed, report
        assert report.cases == 1


def test_integers_that_are_kept_by_their_address_are_told() -> None:
    report = judged(
        f"{candidates.__name__}:keeps_indices", candidates.plain_gather, candidates.INDEXED, only=["state"],
        case="0.float32.plain.indices",
    )  # fmt: skip
    assert report.verdict.cls == "cheats"


# --- what is no mistake ---------------------------------------------------------------------------------------------


def test_what_rises_from_0_beside_longer_integers_is_taken_for_offsets() -> None:
    given = {"i": torch.tensor([1, 3, 0, 2, 2]), "o": torch.tensor([0, 2, 4]), "t": torch.ones(6, 3)}
    assert values.role_of("o", given["o"], [0, 2, 4], given) == "offsets"
    assert values.role_of("i", given["i"], [1, 3, 0, 2, 2], given) == "indices"


def test_a_probability_near_1_less_1_is_what_everybody_computes() -> None:
    def truth(sample: ow.Sample) -> list[Tensor | None]:
        x = sample.args[0].detach().requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(torch.nn.functional.cross_entropy(x, torch.tensor([0])), x)
        return [found]

    x = torch.tensor([[223.69090270996094, 0.0, 208.62042236328125]])
    usual = torch.softmax(x, -1) - torch.tensor([1.0, 0, 0])
    Oracle(truth, ow.Sample((x,)), gradient=True).judge([usual])
    with pytest.raises(Finding):
        Oracle(truth, ow.Sample((x,)), gradient=True).judge([usual + torch.tensor([0.0, 1e-3, 0])])


def test_the_logarithm_of_a_sum_near_1_loses_its_last_digit() -> None:
    x = torch.tensor([[0.0, -38.0]], dtype=torch.float64)

    def run(sample: ow.Sample) -> list[Tensor | None]:
        return [torch.log_softmax(sample.args[0], -1)]

    exact = run(ow.Sample((x,)))[0]
    assert exact is not None
    Oracle(run, ow.Sample((x,))).judge([exact - 2.2e-16])
    with pytest.raises(Finding):
        Oracle(run, ow.Sample((x,))).judge([exact - 1e-10])


def test_of_equal_elements_a_gradient_may_choose_another() -> None:
    def run(sample: ow.Sample) -> list[Tensor | None]:
        x = sample.args[0].detach().requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(torch.topk(x, 1).values.sum(), x)
        return [found]

    tied, apart = torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 2.0])
    for got in ([0.0, 1.0, 0.0], [0.0, 0.0, 1.0]):
        Oracle(run, ow.Sample((tied,)), gradient=True).judge([torch.tensor(got)])
    for sample, got in ((tied, [1.0, 0.0, 0.0]), (apart, [0.0, 1.0, 0.0])):
        with pytest.raises(Finding):
            Oracle(run, ow.Sample((sample,)), gradient=True).judge([torch.tensor(got)])


def test_slopes_that_are_next_to_nothing_beside_others_need_not_be_right() -> None:
    def run(sample: ow.Sample) -> list[Tensor | None]:
        x = sample.args[0].detach().requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(torch.nn.functional.silu(x).sum(), x)
        return [found]

    x = torch.tensor([-55.0, 1.0])
    got = run(ow.Sample((x,)))[0]
    assert got is not None
    Oracle(run, ow.Sample((x,)), gradient=True).judge([got * torch.tensor([0.0, 1.0])])
    for wrong in (torch.tensor([1.0, 1.01]), torch.tensor([-1e12, 1.0])):
        with pytest.raises(Finding):
            Oracle(run, ow.Sample((x,)), gradient=True).judge([got * wrong])
    with pytest.raises(Finding):
        Oracle(run, ow.Sample((x[:1],)), gradient=True).judge([torch.zeros(1)])


def test_which_of_two_equals_is_the_largest_is_judged_to_the_integer() -> None:
    x = torch.tensor([1.5, 2.5, 2.5])
    with pytest.raises(Finding):
        Oracle(lambda s: [s.args[0].argmax()], ow.Sample((x,))).judge([torch.tensor(2)])


def test_the_sign_of_a_zero_is_free_where_zeros_are_compared() -> None:
    def stable(x: Tensor) -> Tensor:
        return torch.sort(x, dim=-1, descending=True, stable=True).values[..., :2].contiguous()

    def plain(x: Tensor) -> Tensor:
        return torch.topk(x, 2).values

    report = judged(stable, plain, only=["special"], case="0-tail.float32.plain.zero")
    assert report.passed, report


def test_squares_that_underflow_inside_a_fused_function_say_nothing() -> None:
    def run(sample: ow.Sample) -> list[Tensor | None]:
        return [sample.args[0].std(-1)]

    assert Oracle(run, ow.Sample((torch.randn(5),))).fits
    assert not Oracle(run, ow.Sample((torch.randn(5) * 1e-21,))).fits


def numbers(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 6, dtype=torch.int8), make(3, 6, dtype=torch.int8)


def test_bytes_that_a_sample_asks_for_are_numbers() -> None:
    def plain(a: Tensor, b: Tensor) -> Tensor:
        return (a.int() * b.int()).sum(-1, dtype=torch.int32)

    def short(a: Tensor, b: Tensor) -> Tensor:
        return (a.short() * b.short()).sum(-1, dtype=torch.int16).int()

    assert not judged(short, plain, numbers, only=["forward"]).passed


def test_indices_reach_as_far_as_a_table_does() -> None:
    def short(index: Tensor, table: Tensor) -> Tensor:
        return table[index.clamp(max=2**15 - 1)]

    report = judged(short, candidates.plain_gather, candidates.INDEXED, only=["forward"])
    assert "+stretched" in report.verdict.case


@pytest.mark.parametrize("right", [True, False])
def test_strides_that_are_the_references_are_no_mistake_where_fakes_promise_others(right: bool) -> None:
    """PyTorch's fake tensors take a tensor of stride 0 for one that has an order."""

    @ow.op(name=f"beside_expanded_{right}")
    def beside(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @beside.kernel("cpu")
    def _(x: Tensor, y: Tensor) -> Tensor:
        return x * y if right else (x * y).contiguous()

    x, y = torch.randn(13)[:, None].expand(13, 2), torch.randn(2, 13).t()
    beside.samples(lambda make: iter([(x, y), (y, y)]))
    assert ow.check(beside, only=["fake"], rung=beside.name).passed == right
