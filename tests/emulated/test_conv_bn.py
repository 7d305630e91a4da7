"""conv_bn's passes as a GPU makes them: both layouts, whatever is kept, over processes of which some have nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import opwright as ow
from opwright.ops.conv_bn import across, settings
from tests import emulated
from tests.cuda.test_conv_bn import FORMS, KEPT, compare, digits_of_a_far_mean

LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
SLOW = (torch.float64, torch.float16)
DTYPES = [
    pytest.param(d, marks=pytest.mark.slow if d in SLOW else (), id=str(d))
    for d in (torch.float32, torch.bfloat16, torch.float64, torch.float16)
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", [False, True], ids=list(LAYOUTS))
def test_it_is_right_in_every_form(ops: Any, dtype: torch.dtype, last: bool) -> None:
    for activation, residual, keep in KEPT:
        for form in FORMS:
            compare(dtype, last, activation, residual, keep, op=ops.conv_bn, device="cpu", **form)


@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize("last", [False, True], ids=list(LAYOUTS))
def test_channels_that_cannot_be_computed_back_are_computed_again(ops: Any, dtype: torch.dtype, last: bool) -> None:
    form: dict[str, Any] = {"hard": True, "groups": 2, "stride": 2, "out": 24, "op": ops.conv_bn, "device": "cpu"}
    for activation in ("none", "leaky_relu"):
        compare(dtype, last, activation, False, "output", **form)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_the_same_whatever_runs_first(ops: Any, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large enough for many blocks, each with more than one turn."""
    x = torch.randn(6, 8, 40, 40).contiguous(memory_format=LAYOUTS[layout]).requires_grad_()
    weight = torch.randn(24, 8, 3, 3, requires_grad=True)
    grad = torch.randn(6, 24, 40, 40)
    found = []
    for seed in ("0", "1", "2"):
        monkeypatch.setenv("EMULATED_SEED", seed)
        out = ops.conv_bn(x, weight, padding=[1, 1], activation="silu")
        found.append([*out[:3], *torch.autograd.grad(out.output, (x, weight), grad)])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    y = F.conv2d(x.double(), weight.double(), padding=1)
    want = F.silu(F.batch_norm(y, None, None, training=True))
    grads = torch.autograd.grad(want, (x, weight), grad.double())
    for got, right in zip((found[0][0], *found[0][3:]), (want, *grads), strict=True):
        assert (got - right).abs().max() < 2e-5 * right.abs().max()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("side", [14, 9], ids=["one launch", "three"])
def test_a_mean_far_from_zero_costs_no_digits(ops: Any, layout: str, side: int) -> None:
    digits_of_a_far_mean(ops.conv_bn, "cpu", LAYOUTS[layout], side, 16 if side == 14 else 15)


def test_in_company_it_is_as_right_under_the_same_settings(ops: Any) -> None:
    x, weight = torch.randn(4, 8, 6, 6, requires_grad=True), torch.randn(8, 8, 1, 1, requires_grad=True)
    found = []
    for told in (-1, settings.APART - 1, settings.now(False), settings.now(False) + settings.APART):
        out = ops.conv_bn(x, weight, activation="relu", settings=told)
        found.append([out.output, *torch.autograd.grad(out.output.square().sum(), (x, weight))])
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], rtol=1e-4, atol=1e-4)
    for wrong in (-2, settings.END):
        with pytest.raises(ValueError, match="settings must be those of"):
            ops.conv_bn(x, weight, settings=wrong)


def test_what_does_not_lie_as_vectors_do_is_taken_one_by_one(ops: Any) -> None:
    """A residual that begins anywhere: the convolution's result does not."""
    x, weight = torch.randn(2, 3, 6, 6), torch.randn(8, 3, 1, 1)
    for layout in LAYOUTS.values():
        for offset in (1, 2, 4):
            whole = torch.randn(2 * 8 * 36 + offset)
            residual = whole[offset:].view(2, 8, 6, 6)
            residual = residual.view(2, 6, 6, 8).permute(0, 3, 1, 2) if layout == torch.channels_last else residual
            got = ops.conv_bn(x.contiguous(memory_format=layout), weight, residual=residual, activation="relu").output
            want = F.relu(F.batch_norm(F.conv2d(x, weight), None, None, training=True) + residual)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


SIZES = {"none first": (0, 3, 2), "the first two": (0, 0, 4), "one value": (1, 0, 5), "uneven": (4, 1, 7)}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=list(SIZES))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("far", [0.0, 3e3])
def test_processes_together_have_the_statistics_of_the_whole_batch(
    ops: Any, sizes: tuple[int, ...], layout: str, far: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is asked in turn; what they tell each other is written down, and complete in the next round."""
    ranks, side = len(sizes), 1 if 1 in sizes else 5
    whole = (torch.randn(sum(sizes), 12, side, side) + far).contiguous(memory_format=LAYOUTS[layout])
    weight, gamma = torch.eye(12)[:, :, None, None].contiguous(), torch.rand(12) + 0.5
    grad = torch.randn_like(whole)
    told, sums, turn = torch.zeros(ranks, 25), torch.zeros(ranks, 24), [0]

    def gather(own: Tensor, ranks: int, group: str) -> Tensor:
        told[turn[0]] = own
        return told.clone()

    def total(own: Tensor, group: str) -> Tensor:
        sums[turn[0]] = own
        return sums.sum(0)

    monkeypatch.setattr(across, "_gather", gather)
    monkeypatch.setattr(across, "_sum", total)
    for _ in range(3):
        found = []
        for k, (mine, part) in enumerate(zip(*(t.split(list(sizes)) for t in (whole, grad)), strict=True)):
            turn[0] = k
            leaves = [mine.detach().requires_grad_(), gamma.clone().requires_grad_()]
            assert ow.explain(ops.conv_bn, leaves[0], weight, group="g", ranks=ranks).runs == "cuda_emulated.cpp"
            out = ops.conv_bn(leaves[0], weight, gamma=leaves[1], group="g", ranks=ranks)
            found.append([out.output, *torch.autograd.grad(out.output, leaves, part)])
    outputs, to_x, to_gamma = zip(*found, strict=True)
    exact = [t.double().requires_grad_() for t in (whole, gamma)]
    want = F.batch_norm(exact[0], None, None, exact[1], None, training=True)
    assert out.number.item() == sum(sizes) * side * side
    digits = 2e-3 if far else 2e-5
    variance = whole.double().var((0, 2, 3), unbiased=False)
    torch.testing.assert_close(out.mean.double(), whole.double().mean((0, 2, 3)), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(out.var.double(), variance, rtol=digits, atol=0)
    got = [torch.cat(outputs), torch.cat(to_x), torch.stack(to_gamma).sum(0)]
    for a, b in zip(got, (want, *torch.autograd.grad(want, exact, grad.double())), strict=True):
        assert (a - b).abs().max() < 4 * digits * max(b.abs().max().item(), 1)


@pytest.mark.slow
def test_there_may_be_more_channels_than_a_grid_has_rows(tmp_path: Path) -> None:
    """65535 of them are many to run here: of a GPU with 20 the same is asked."""
    changes = {"most_rows = 65535": "most_rows = 20"}
    op = emulated.operators(tmp_path, "conv_bn", namespace="emulated_channels", changes=changes).conv_bn
    x, weight = torch.randn(2, 1, 2, 2, requires_grad=True), torch.randn(300, 1, 1, 1, requires_grad=True)
    for layout in LAYOUTS.values():
        found = op(x.contiguous(memory_format=layout), weight, activation="silu").output
        expected = F.silu(F.batch_norm(F.conv2d(x, weight), None, None, training=True))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        one, two = (torch.autograd.grad(out.square().sum(), weight)[0] for out in (found, expected))
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-2)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_property_holds_that_tells_something_here(ops: Any) -> None:
    report = ow.check(ops.conv_bn, only=["forward", "gradients", "special", "memory", "determinism", "vmap"])
    assert report.passed, str(report)
