"""What PyTorch's FlopCounterMode counts for operators."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import opwright as ow
from tests.kit.recording import Define


def count(function: Callable[..., Any], *given: Tensor) -> tuple[int, int]:
    """Forward, and forward and backward."""
    with FlopCounterMode(display=False) as counter:
        out = function(*given)
        forward = counter.get_total_flops()
        if out.requires_grad:
            out.sum().backward()
    return forward, counter.get_total_flops()


def drawn(*wanted: bool) -> list[Tensor]:
    shapes = ((16, 32), (24, 32), (24,))
    return [torch.randn(s, requires_grad=w) for s, w in zip(shapes, wanted, strict=True)]


@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, True), (True, False, False), (False,) * 3])
def test_linear_counts_what_pytorchs_own_does_each_time(wanted: tuple[bool, ...]) -> None:
    expected = count(torch.nn.functional.linear, *drawn(*wanted))
    assert expected[0] == 24576
    for _ in range(3):
        assert count(ow.linear, *drawn(*wanted)) == expected


def test_a_form_that_saves_counts_what_its_operator_costs() -> None:
    cell = ow.nn.LLTMCell(8, 8)
    for _ in range(2):
        assert count(lambda x: cell(x)[0], torch.randn(3, 8)) == (2 * 3 * 24 * 16, 3 * 2 * 3 * 24 * 16)


def test_a_form_in_place_counts_what_its_operator_costs(define: Define) -> None:
    def fifth(x: Tensor) -> Tensor:
        return x / 5

    op = define(fifth)
    op.cost(lambda x: ow.Cost(bytes=0, flops=x.numel()))
    assert count(op, torch.ones(7)) == count(ow.in_place(op), torch.ones(7)) == (7, 7)


def test_without_a_cost_the_reference_is_counted(define: Define) -> None:
    def product(x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    op = define(product)
    for _ in range(2):
        x, y = torch.randn(4, 5, requires_grad=True), torch.randn(5, 6, requires_grad=True)
        forward, both = count(op, x, y)
        assert forward == 2 * 4 * 5 * 6
        assert both == 4 * forward  # the derived gradient computes the forward again


def test_what_nobody_can_count_is_said_once(define: Define) -> None:
    def uneven(x: Tensor) -> Tensor:
        return x @ x if float(x.sum()) < 0 else x @ x @ x

    op = define(uneven)
    with pytest.warns(RuntimeWarning, match=r"uneven: FlopCounterMode counts 0 .* with @uneven\.cost"):
        assert count(op, torch.ones(2, 2)) == (0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert count(op, torch.ones(2, 2)) == (0, 0)
    op.cost(lambda x: ow.Cost(bytes=0, flops=7))
    assert count(op, torch.ones(2, 2)) == (7, 7)


@pytest.mark.parametrize("order", ["opwright, torch.utils.flop_counter", "torch.utils.flop_counter, opwright"])
def test_the_counter_may_be_imported_before_or_after(order: str) -> None:
    code = f"""
import sys, torch
import {order.split(", ")[0]}
if {order.startswith("opwright")}: assert "torch.utils.flop_counter" not in sys.modules
import {order.split(", ")[1]}
with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
    opwright.linear(torch.ones(2, 3), torch.ones(4, 3))
print(counter.get_total_flops())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "48\n"


def test_counters_inside_counters_see_a_call_once() -> None:
    @ow.op(name="counted_twice", opaque=True)
    def product(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    with FlopCounterMode(display=False) as outer, FlopCounterMode(display=False) as inner:
        product(torch.ones(8, 8), torch.ones(8, 8))
    assert outer.get_total_flops() == inner.get_total_flops() == 1024


def test_a_cost_that_is_a_plain_number_is_refused() -> None:
    @ow.op(opaque=True)
    def costs_five(x: Tensor) -> Tensor:
        return x * 2

    costs_five.cost(lambda x: 5)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match=r"costs_five: its cost must be an ow\.Cost\(bytes=…, flops=…\), got int"):
        count(costs_five, torch.ones(2))
