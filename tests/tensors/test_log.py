"""Calls are recorded with what went in, what came out, how long and inside what."""

# mypy: disable-error-code="arg-type, attr-defined, call-overload, comparison-overlap, list-item, misc, operator"
# PyTorch's stubs know of Tensors alone.

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch.nn import functional

from opwright.tensors import Annotated, Followed, ScaledIdentity, log, log_calls

nests = pytest.mark.skipif(
    log._call_body is None, reason="before torch 2.13 PyTorch gives no way into a function's body, and the log is flat"
)


def test_a_call_is_recorded_with_shapes_dtypes_and_time() -> None:
    x = torch.ones(2, 3)
    with log_calls() as log:
        torch.add(x, x.double(), alpha=2)
    call = log.calls[-1]
    assert call.name == "torch.add"
    assert call.inputs == ("float32[2, 3]", "float64[2, 3]", "alpha=2")
    assert call.output == "float64[2, 3]"
    assert call.seconds > 0
    assert [c.name for c in log.calls] == ["torch.Tensor.double", "torch.add"]


@nests
def test_nested_calls_are_children() -> None:
    with log_calls() as log:
        functional.softmax(torch.ones(2, 3), dim=1)
    outer = log.calls[-1]
    assert outer.name == "torch.nn.functional.softmax"
    assert [c.name for c in outer.calls] == ["torch.Tensor.softmax"]
    assert outer.seconds >= outer.calls[0].seconds
    assert len(log) == 3


@nests
def test_modules_of_pytorch_run_as_ever_under_it() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
    x = torch.rand(3, 1, 4)
    expected = layer(x)
    with log_calls() as log:
        got = layer(x)
        got.sum().backward()
    assert torch.equal(got, expected)
    assert {"torch.nn.functional.linear", "torch.nn.functional.layer_norm"} <= {c.name for c in log}
    assert max(depth for depth, _ in log._walk(log.calls)) >= 2


@nests
def test_the_log_prints_as_a_tree_and_as_totals() -> None:
    with log_calls() as log:
        x = torch.ones(3)
        functional.relu(x)
        functional.relu(x)
    lines = str(log).splitlines()
    assert lines[0].startswith("torch.ones(3) -> float32[3]  ")
    assert lines[1].startswith("torch.nn.functional.relu(float32[3], inplace=False) -> float32[3]  ")
    assert lines[2].startswith("  torch.relu(float32[3])")
    head, *rows = log.totals().splitlines()
    assert head.split() == ["function", "calls", "total", "alone"]
    assert {row.split()[0]: int(row.split()[1]) for row in rows} == {
        "torch.nn.functional.relu": 2,
        "torch.relu": 2,
        "torch.ones": 1,
    }


def test_printing_inside_is_safe_and_unrecorded() -> None:
    x = torch.ones(2)
    with log_calls() as log:
        text = f"{x} {x!r} {log} {x.shape}"
        print(x)
    assert "tensor([1., 1.])" in text
    assert len(log) == 0


def test_an_error_is_recorded_and_passed_on() -> None:
    with log_calls() as log, pytest.raises(RuntimeError):
        torch.matmul(torch.ones(2), torch.ones(3))
    assert log.calls[-1].error == "RuntimeError"
    assert "raised RuntimeError" in str(log)


def test_off_leaves_nothing_behind() -> None:
    with log_calls() as log:
        torch.ones(1)
    recorded = len(log)
    torch.ones(1) + 1
    assert len(log) == recorded
    assert torch._C._len_torch_function_stack() == 0


def test_off_is_off_after_an_error_too() -> None:
    with pytest.raises(ZeroDivisionError), log_calls():
        _ = 1 / 0
    assert torch._C._len_torch_function_stack() == 0


def test_logs_nest() -> None:
    with log_calls() as outer:
        torch.ones(1)
        with log_calls() as inner:
            torch.zeros(1)
    assert [c.name for c in inner] == ["torch.zeros"]
    assert [c.name for c in outer] == ["torch.ones", "torch.zeros"]


def test_other_types_are_recorded_once_and_what_they_call_inside() -> None:
    x, annotated = ScaledIdentity(3, 2.0), Annotated(torch.ones(3), unit="m")
    with log_calls() as log:
        y = torch.matmul(x, torch.ones(3))
        z = annotated + 1
    names = [c.name for c in log.calls]
    assert names == ["torch.ones", "torch.matmul", "torch.Tensor.add"]
    assert "torch.Tensor.mul" in [c.name for c in log.calls[1].calls]
    assert log.calls[1].inputs[0] == "ScaledIdentity[3, 3]"
    assert y.tolist() == [2.0] * 3
    assert z.metadata == {"unit": "m"}


def test_types_that_do_not_know_each_other_still_raise_type_error() -> None:
    with log_calls(), pytest.raises(TypeError, match="Annotated"):
        torch.add(Annotated(torch.ones(1)), Followed(torch.ones(1)))


def test_followed_records_only_what_it_takes_part_in() -> None:
    x = Followed(torch.ones(3))
    torch.ones(3) * 2
    y = torch.ones(3) * (x + 1)
    z = y[0].exp()
    assert [c.name for c in x.calls] == [
        "torch.Tensor.add",
        "torch.Tensor.mul",
        "torch.Tensor.__getitem__",
        "torch.Tensor.exp",
    ]
    assert z.calls is x.calls
    assert x.calls.calls[1].inputs == ("float32[3]", "float32[3]")


def test_two_followed_tensors_may_share_a_log() -> None:
    x = Followed(torch.ones(1))
    y = Followed(torch.ones(1), calls=x.calls)
    y + 1
    x + y
    assert len(x.calls) == 2


def test_followed_prints_safely_and_is_copied() -> None:
    x = Followed(torch.ones(2))
    assert repr(x) == "Followed(tensor([1., 1.]))"
    assert f"{x}" == repr(x)
    assert len(x.calls) == 0
    twin = copy.deepcopy(x)
    twin + 1
    assert len(x.calls) == 0
    assert len(twin.calls) == 1


def test_followed_is_loaded_with_weights_only() -> None:
    x = Followed(torch.ones(2))
    x + 1
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert isinstance(loaded, Followed)
    assert [call.name for call in loaded.calls] == ["torch.Tensor.add"]


def test_followed_is_differentiated() -> None:
    t = torch.ones(2, requires_grad=True)
    x: Any = Followed(t)
    (x * 3).sum().backward()
    assert torch.equal(t.grad, torch.full((2,), 3.0))  # type: ignore[arg-type]
    assert "torch.Tensor.backward" in [c.name for c in x.calls]
