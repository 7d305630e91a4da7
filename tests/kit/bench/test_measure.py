"""Measuring one case, in this process."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.bench.cases import families
from opwright.kit.bench.limits import Limits
from opwright.kit.bench.measure import measure, variants
from opwright.kit.spec.measured import Variant
from opwright.kit.truth import tolerance
from opwright.kit.truth.oracle import Finding, Oracle

LIMITS = Limits([(1 << 14, 1e10)], {"float32": 1e11})


def shifted() -> ow.Op[..., Any]:
    @ow.op(namespace="bench_tests")
    def shifted(x: Tensor, *, by: float = 1.0) -> Tensor:
        return x.sin() + by

    @shifted.samples
    def _(make: ow.Maker) -> Any:
        yield make(3)

    @shifted.cost
    def _(x: Tensor, by: float) -> ow.Cost:
        return ow.Cost(bytes=2 * x.nbytes, flops=x.numel())

    shifted.bench("plain", sizes=(64, 1 << 12))(lambda make, n: make(n))
    return shifted


def rows_of(op: ow.Op[..., Any], *more: Variant, **options: Any) -> dict[str, dict[str, Any]]:
    ways = [w for w in variants(op) if w.kind != "compiled"] + list(more)
    case = families(op)[0].cases()[0]
    rows = measure(op, case, ways=ways, seconds=0.02, limits=LIMITS, **options)
    return {row["variant"]: row for row in rows}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_row_says_what_was_measured(dtype: torch.dtype) -> None:
    row = rows_of(shifted(), dtype=dtype)["opwright"]
    assert (row["op"], row["case"], row["device"], row["status"]) == ("shifted", "plain 2^12", "cpu", "ok")
    assert row["forward_us"]["p20"] <= row["forward_us"]["p50"] <= row["forward_us"]["p80"]
    assert row["forward_backward_us"]["p50"] > row["forward_us"]["p50"]
    assert row["forward_bytes"] == 2 * 4096 * dtype.itemsize
    assert row["forward_fraction"] == pytest.approx(row["forward_limit_us"] / row["forward_us"]["p50"], rel=0.02)
    assert row["forward_readings"] >= 15
    assert row["steps"][0]["name"] == "forward"
    assert "verdict" in row["forward_speedup"]


WRONG: dict[str, Callable[..., Tensor]] = {
    "values": lambda x, by=1.0: x.sin() * (1 + 1e-4) + by,
    "shape": lambda x, by=1.0: (x.sin() + by)[1:],
    "dtype": lambda x, by=1.0: (x.sin() + by).double(),
    "nan": lambda x, by=1.0: torch.where(x > 1.9, float("nan"), x.sin() + by),
    "gradient": lambda x, by=1.0: x.sin() + by + 1e-3 * (x - x.detach()),
    "only without gradients": lambda x, by=1.0: x.sin() + by + (0 if x.requires_grad else 1e-3),
    "no gradient": lambda x, by=1.0: (x.sin() + by).detach(),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_variant_that_is_wrong_is_shown_as_wrong_and_never_timed(name: str) -> None:
    row = rows_of(shifted(), Variant("quick", "variant", WRONG[name]))["quick"]
    assert row["status"] in ("wrong", "error")
    assert row["why"]
    assert not [key for key in row if key.endswith(("_us", "_speedup"))]


def test_what_a_wrong_row_says() -> None:
    row = rows_of(shifted(), Variant("quick", "variant", WRONG["gradient"]))["quick"]
    assert row["status"] == "wrong"
    assert row["why"].startswith("the gradient of x is off by ")
    assert "allowed" in row["why"]


@pytest.mark.parametrize("name", ["values", "shape", "dtype", "nan"])
def test_what_bench_refuses_the_check_refuses(name: str) -> None:
    op, wrong = shifted(), WRONG[name]
    sample = families(op)[0].cases()[0].arguments(op, ow.Maker())
    with pytest.raises(Finding):
        Oracle(lambda s: [op.reference(*s.args)], sample).judge([wrong(*sample.args)])


def test_tolerances_are_those_of_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    more = Variant("other", "variant", lambda x, by=1.0: (x.double().sin() + by).to(x.dtype))
    assert rows_of(shifted(), more)["other"]["status"] == "ok"
    monkeypatch.setattr(tolerance, "FEW", 0.0)
    assert rows_of(shifted(), more)["other"]["status"] == "ok"  # within what the reference loses
    monkeypatch.setattr(tolerance, "LOSS", 0.0)
    assert rows_of(shifted(), more)["other"]["status"] == "wrong"


def test_rounding_that_the_reference_makes_too_is_not_wrong() -> None:
    def other_order(x: Tensor, by: float = 1.0) -> Tensor:
        return by + x.sin()

    def in_float32(x: Tensor, by: float = 1.0) -> Tensor:
        return (x.float().sin() + by).to(x.dtype)

    more = Variant("other order", "variant", other_order), Variant("in float32", "variant", in_float32)
    for dtype in (torch.float32, torch.bfloat16):
        rows = rows_of(shifted(), *more, dtype=dtype)
        assert [r["status"] for r in rows.values()] == ["ok"] * 4


def test_a_variant_that_raises_does_not_keep_the_others_from_being_measured() -> None:
    def raises(x: Tensor, by: float = 1.0) -> Tensor:
        raise RuntimeError("no luck\nmore lines")

    def greedy(x: Tensor, by: float = 1.0) -> Tensor:
        return torch.empty(1 << 55)

    rows = rows_of(shifted(), Variant("raises", "variant", raises), Variant("greedy", "variant", greedy))
    assert (rows["raises"]["status"], rows["raises"]["why"]) == ("error", "RuntimeError: no luck")
    assert rows["greedy"]["status"] == "out of memory"
    assert rows["opwright"]["status"] == "ok"


def test_a_rival_that_computes_something_else_is_there_for_scale() -> None:
    def squares(x: Tensor, by: float = 1.0) -> Any:
        return x.reshape(64, 64), x.reshape(64, 64)

    rows = rows_of(shifted(), Variant("other", "rival", torch.matmul, squares, same=False))
    assert rows["other"]["status"] == "ok"
    assert "not compared" in rows["other"]["why"]
    assert "forward_fraction" not in rows["other"]
    assert rows["other"]["forward_backward_us"]["p50"] > 0


def test_a_rival_with_arguments_of_its_own_is_compared_by_its_outputs() -> None:
    def parts(x: Tensor, by: float = 1.0) -> Any:
        return x / 2, x / 2, by

    def added(x: Tensor, y: Tensor, by: float) -> Tensor:
        return (x + y).sin() + by

    def off(x: Tensor, y: Tensor, by: float) -> Tensor:
        return (x + y).sin() - by

    rows = rows_of(shifted(), Variant("sum", "rival", added, parts), Variant("off", "rival", off, parts))
    assert (rows["sum"]["status"], rows["off"]["status"]) == ("ok", "wrong")
    assert "gradients not compared" in rows["sum"]["why"]


def test_memory_counts_what_is_kept_and_the_peak() -> None:
    @ow.op(namespace="bench_tests")
    def square(x: Tensor) -> Tensor:
        return (x * 2 + 1) * x

    square.bench("plain", sizes=(1 << 16,))(lambda make, n: make(n))
    row = rows_of(square)["eager"]
    size = 4 << 16
    assert row["kept_bytes"] == 2 * size  # x, and x·2 + 1
    assert row["kept_beyond_inputs_bytes"] == size
    assert 2 * size <= row["forward_peak_bytes"] < 2.1 * size
    row = rows_of(ow.axpby)["opwright"]
    assert row["kept_bytes"] == 0
    assert row["forward_peak_bytes"] == 4 << 20


def test_an_operator_that_writes_to_a_buffer_is_measured_too() -> None:
    @ow.op(mutates="count")
    def counted(x: Tensor, count: Tensor) -> Tensor:
        count.add_(1)
        return x * 2

    counted.bench("plain", sizes=(64,))(lambda make, n: (make(n), make(1)))
    rows = rows_of(counted, Variant("forgets", "variant", lambda x, count: x * 2))
    assert rows["opwright"]["status"] == "ok"
    assert (rows["forgets"]["status"], rows["forgets"]["why"].partition(" is ")[0]) == ("wrong", "count")


def test_an_operator_without_gradients_has_no_backward_to_time() -> None:
    @ow.op(namespace="bench_tests")
    def rounded(x: Tensor) -> Tensor:
        return (x > 0).to(torch.int64)

    rounded.bench("plain", sizes=(64,))(lambda make, n: make(n))
    row = rows_of(rounded)["opwright"]
    assert row["status"] == "ok"
    assert "forward_backward_us" not in row


def test_limits_follow_the_roofline() -> None:
    limits = Limits([(1000, 10.0), (100_000, 5.0)], {"float32": 100.0})
    assert limits.seconds(ow.Cost(bytes=1000, flops=1), "float32") == 100.0
    assert limits.seconds(ow.Cost(bytes=10, flops=1000), "float32") == 10.0
    assert limits.bandwidth(10_000) == pytest.approx(7.5)
    assert limits.bandwidth(10**9) == 5.0
    assert limits.seconds(ow.Cost(bytes=0, flops=5), "bfloat16") == 0.0
    noisy = Limits([(1000, 1.0), (100_000, 5.0)], {})
    assert noisy.bandwidth(1000) == 5.0
    assert math.isinf(Limits([], {}).bandwidth(10))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_times_the_device_apart_from_the_host() -> None:
    row = rows_of(shifted(), device="cuda")["opwright"]
    assert row["status"] == "ok"
    assert row["forward_host_us"] > 0
    assert row["forward_us"]["p50"] < 200
