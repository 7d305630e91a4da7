"""Findings say what to write, with what they were found, and one mistake is told once."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow


@ow.op
def unsigned(x: Tensor, y: Tensor) -> Tensor:
    return x * y


@unsigned.kernel("cpu", ow.Domain(dtypes=(torch.float32,)))
def _(x: Tensor, y: Tensor) -> Tensor:
    return x * y + 0.0


@ow.op
def restrided(x: Tensor, y: Tensor) -> Tensor:
    return x * y


@restrided.kernel("cpu")
def _(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).contiguous()


@ow.op
def crashing(x: Tensor) -> Tensor:
    return x * 2


@crashing.kernel("cpu")
def _(x: Tensor) -> Tensor:
    return x * 2 if x.numel() else torch.tensor(ctypes.string_at(0))


@ow.op
def unconjugated(x: Tensor) -> Tensor:
    return x * x


@unconjugated.gradient
def _(grad: Tensor, x: Tensor) -> Tensor:
    return 2 * grad * x


def told(op: ow.Op[..., Tensor], name: str) -> str:
    report = ow.check(op, only=[name])
    (line,) = [line for line in str(report).splitlines() if line.startswith(f"FAILED {op.name} ")]
    return line


def test_special_values_are_shown() -> None:
    said = told(unsigned, "special")
    assert re.search(r"other sign of zero, where x\[[\d, ]*\] = \S+, y\[[\d, ]*\] = \S+ \[", said)
    assert "(and 2 more like it)" in str(ow.check(unsigned, only=["special"]))


@ow.op
def scaled_rows(x: Tensor, rms: Tensor, weight: Tensor) -> Tensor:
    return x * rms[:, None] * weight


@scaled_rows.kernel("cpu", ow.Domain(dtypes=(torch.float32,)))
def _(x: Tensor, rms: Tensor, weight: Tensor) -> Tensor:
    return x * rms[:, None].nan_to_num() * weight


@scaled_rows.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 6), make(4), make(6)


def test_the_values_shown_are_those_of_the_element_and_of_its_row() -> None:
    said = [f for f in ow.check(scaled_rows, only=["special"]).failures if f.op == "scaled_rows"]
    assert said
    for f in said:
        assert f.index is not None
        row, column = f.index
        # Where there are as many rows as columns, nobody can tell which of them a number belongs to.
        shown = rf"where x\[{row}, {column}\] = \S+, rms\[{row}\] = (nan|-?inf), weight\[{column}\] = "
        assert re.search(shown, f.message) or re.search(r"x=float32\[(\d+), \1\]", f.sample), f.message
    assert any("rms[" in f.message for f in said)


def test_strides_have_a_remedy() -> None:
    assert 'name them in its order, or declare the kernel for layout="contiguous"' in told(restrided, "fake")


def test_a_crash_shows_its_call() -> None:
    assert re.search(r"crashed with SIGSEGV \[\d+: x [^:]+: x=\w+\[.*\]\]", told(crashing, "rejects"))


def test_complex_gradients_have_a_remedy() -> None:
    assert "x.conj() in a formula" in told(unconjugated, "gradients")
