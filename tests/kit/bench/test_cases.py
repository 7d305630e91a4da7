"""What an operator is measured on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.bench.cases import families
from opwright.kit.bench.run import Asked
from tests.library import OPERATORS


@ow.op(namespace="bench_tests")
def tilted(x: Tensor, y: Tensor, *, a: float = 1.0) -> Tensor:
    return x + a * y


@tilted.samples
def _(make: ow.Maker) -> Any:
    yield make(3, 1), make(4)
    yield make(2, 3), make(2, 3), {"a": 3.0}


def test_an_elementwise_operator_grows_from_its_samples() -> None:
    (family,) = families(tilted)
    case = family.cases()[0]
    sample = case.arguments(tilted, ow.Maker(torch.float64))
    assert case.name == "elementwise 2^20"
    assert [t.shape for t in sample.args] == [(1 << 20,), (1 << 20,)]
    assert (sample.args[0].dtype, sample.kwargs) == (torch.float64, {"a": 3.0})


def test_other_operators_are_measured_on_their_largest_sample() -> None:
    @ow.op(namespace="bench_tests")
    def outer(x: Tensor, y: Tensor) -> Tensor:
        return x[:, None] * y

    @outer.samples
    def _(make: ow.Maker) -> Any:
        yield make(2), make(3)
        yield make(7), make(9)

    (family,) = families(outer)
    (case,) = family.cases()
    assert (case.name, case.size) == ("sample 1", None)
    assert [t.shape for t in case.arguments(outer, ow.Maker()).args] == [(7,), (9,)]


def test_an_operator_without_samples_has_nothing_to_be_measured_on() -> None:
    @ow.op(namespace="bench_tests")
    def bare(x: Tensor) -> Tensor:
        return x + 1

    assert families(bare) == []


def test_what_is_declared_is_checked() -> None:
    @ow.op(namespace="bench_tests")
    def mine(x: Tensor) -> Tensor:
        return x + 1

    mine.bench("plain", sizes=(2, 4), at=2)(lambda make, n: make(n))
    with pytest.raises(ValueError, match="mine: it has bench cases named 'plain' already"):
        mine.bench("plain")(lambda make: make(1))
    with pytest.raises(ValueError, match=r"mine: at must be one of the sizes \[2, 4\], got 3"):
        mine.bench("other", sizes=(2, 4), at=3)(lambda make, n: make(n))
    with pytest.raises(ValueError, match="positive whole numbers"):
        mine.bench("third", sizes=(0,))(lambda make, n: make(n))
    mine.rival("torch.add", lambda x: torch.add(x, 1))
    with pytest.raises(ValueError, match=r"mine: there is a 'torch\.add' to measure already"):
        mine.variant("torch.add", lambda x: x + 1)
    with pytest.raises(ValueError, match="there is a 'eager' to measure already"):
        mine.rival("eager", lambda x: x + 1)
    assert [c.size for c in families(mine)[0].cases()] == [2, 4]


@pytest.mark.parametrize("op", [op for op in OPERATORS if op.signature.returns_input is None], ids=lambda op: op.name)
def test_the_library_declares_a_sweep_and_costs(op: ow.Op[..., Any]) -> None:
    sweep = max(families(op), key=lambda family: len(family.sizes))
    assert len(sweep.sizes) >= 4
    sample = sweep.cases()[-1].arguments(op, ow.Maker())
    assert op.cost_of(*sample.args, **sample.kwargs) is not None
    assert not op.has_rung or op.backward.has_cost


def test_what_is_asked_becomes_jobs() -> None:
    sizes = {"cpu": (4, 8, 16), "cuda": (32, 64)}

    @ow.op(namespace="bench_tests")
    def many(x: Tensor) -> Tensor:
        return x + 1

    many.bench("plain", sizes=sizes, at={"cpu": 8, "cuda": 64})(lambda make, n: make(n))
    many.bench("other")(lambda make: make(2))

    def names(**options: Any) -> list[list[str]]:
        return [job.cases for job in Asked([many], **options).jobs()]

    assert names() == [["plain 8", "other", "plain 4", "plain 16"]]
    assert names(sweep=False, families=1) == [["plain 8", "plain 4"]]
    assert names(sweep=False) == [["plain 8", "other", "plain 4"]]
    assert names(devices=("cpu", "cuda"), families=1)[1] == ["plain 64", "plain 32"]
    assert len(names(dtypes=("float32", "bfloat16"))) == 2
    assert names(only=[("many", "plain 16", "float32", "cpu")]) == [["plain 16"]]
    assert names(only=[("other", "plain 16", "float32", "cpu")]) == []
    (job,) = Asked([many], compile_sizes=False, without=["rival"]).jobs()
    assert job.without["plain 8"] == ["rival"]
    assert job.without["plain 4"] == ["rival", "compiled"]
