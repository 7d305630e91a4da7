"""Texts that may be some words alone: no kernel sees another, whoever calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import opwright as ow

OPERATORS = """
import enum
from typing import Literal
import torch
from torch import Tensor
import opwright as ow

class Way(enum.Enum):
    up = 1
    down = 2

@ow.op
def stepped(x: Tensor, *, by: Literal["one", "two"] = "one", way: Way | None = None) -> Tensor:
    return x + (1 if by == "one" else 2) * (-1 if way is Way.down else 1)

stepped.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,)))
"""
KERNEL = """
#include <opwright/kernel.h>

Tensor stepped_cpu(const Tensor& x, std::string by, std::optional<std::string> way) {
    const float step = (by == "one" ? 1.0f : 2.0f) * (way && *way == "down" ? -1.0f : 1.0f);
    return map([=](float v) { return v + step; }, x);
}
OPWRIGHT_KERNEL(stepped, CPU, stepped_cpu);
"""


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("texts") / "stepped"
    folder.mkdir()
    (folder / "op.py").write_text(OPERATORS, encoding="utf-8")
    (folder / "cpu.cpp").write_text(KERNEL, encoding="utf-8")
    return ow.load(folder).stepped


@pytest.mark.parametrize("call", ["first", "second"])
def test_a_text_that_no_kernel_knows_is_rejected(stepped: Any, call: str) -> None:
    x = torch.zeros(2)
    for by, way, result in (("one", None, 1), ("two", "down", -2), ("two", "up", 2)):
        assert torch.ops.user.stepped(x, by=by, way=way).tolist() == [result] * 2
    with pytest.raises(TypeError, match="by must be one of 'one', 'two', got str 'three'"):
        torch.ops.user.stepped(x, by="three")
    with pytest.raises(TypeError, match=r"way must be one of .*, got str 'sideways'"):
        torch.ops.user.stepped(x, way="sideways")
