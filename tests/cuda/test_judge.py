"""Any function held against another on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from tests.cuda import needs_gpu

SAMPLES = [(torch.linspace(-3, 3, 28).reshape(4, 7),)]
_kept: dict[Any, Tensor] = {}


def double(x: Tensor) -> Tensor:
    return x * 2


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def without_maximum(x: Tensor) -> Tensor:
    e = torch.exp(x)
    return e / e.sum(-1, keepdim=True)


def on_another_stream(x: Tensor) -> Tensor:
    """Nobody waits for what it computes."""
    y = torch.zeros_like(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        y.copy_(x * 2)
    return y


def by_address(x: Tensor) -> Tensor:
    return _kept.setdefault((x.data_ptr(), x.shape, x.stride()), x * 2).clone()


def past_argument(x: Tensor) -> Tensor:
    y = x * 2
    if x.numel() and x.is_contiguous():
        x.as_strided((1,), (1,), x.storage_offset() + x.numel()).zero_()
    return y


@needs_gpu
@pytest.mark.parametrize("function", [double, softmax])
def test_what_is_right_passes_on_a_gpu(function: Any) -> None:
    report = ow.check(function, like=function, samples=SAMPLES, device="cuda")
    assert report.passed, report


@needs_gpu
@pytest.mark.parametrize(
    ("candidate", "like", "cls"),
    [
        (without_maximum, softmax, {"wrong values"}),
        (on_another_stream, double, {"wrong values", "race", "nondeterministic"}),
        (by_address, double, {"cheats"}),
        (past_argument, double, {"out of bounds"}),
    ],
)
def test_what_is_wrong_does_not_pass_on_a_gpu(candidate: Any, like: Any, cls: set[str]) -> None:
    report = ow.check(candidate, like=like, samples=SAMPLES, device="cuda")
    assert report.verdict is not None, report
    assert report.verdict.cls in cls


LAUNCHERS = "tests.cuda.launchers"


@needs_gpu
@pytest.mark.parametrize("name", ["right", "tuned", "by_product", "compiled"])
def test_launchers_that_are_right_pass_and_are_watched(name: str) -> None:
    options: Any = {"keep": ["sizes", "layouts", "values"], "timeout": 200.0} if name == "compiled" else {}
    report = ow.check(f"{LAUNCHERS}:{name}", like=double, samples=SAMPLES, device="cuda", **options)
    assert report.passed, report
    assert not [note for note in report.notes if "was not looked for" in note], report


@needs_gpu
def test_a_graph_that_is_captured_inside_is_no_mistake() -> None:
    options: Any = {"only": ["forward", "memory"], "keep": ["sizes", "layouts"]}
    report = ow.check(f"{LAUNCHERS}:captured", like=double, samples=SAMPLES, device="cuda", **options)
    assert report.passed, report
    assert [note for note in report.notes if "was not looked for" in note], report


@needs_gpu
@pytest.mark.parametrize(
    ("name", "cls", "message"),
    [
        ("whole_blocks", "out of bounds", "past the end of its result"),
        ("one_past", "out of bounds", "past the end of its result"),
        ("past_temporary", "out of bounds", "past the end of memory that it allocated"),
        ("unwritten", "nondeterministic", "not initialised"),
    ],
)
def test_what_a_launcher_writes_beside_its_results_is_found(name: str, cls: str, message: str) -> None:
    report = ow.check(f"{LAUNCHERS}:{name}", like=double, samples=SAMPLES, device="cuda", only=["memory"])
    assert report.verdict is not None, report
    assert report.verdict.cls == cls
    assert message in report.verdict.message
    assert report.notes == []


@needs_gpu
def test_a_launcher_that_writes_past_its_result_fails_the_whole_check() -> None:
    report = ow.check(f"{LAUNCHERS}:whole_blocks", like=double, samples=SAMPLES, device="cuda")
    assert report.verdict is not None, report
    assert report.verdict.cls == "out of bounds"
