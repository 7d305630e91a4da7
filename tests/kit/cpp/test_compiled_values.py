"""Values that PyTorch's compiled models lose: refused when a model is packaged, and not when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow


@ow.op(namespace="compiled_values", opaque=True)
def converted(x: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    return x.to(dtype) + 1


@ow.op(namespace="compiled_values", opaque=True)
def valued(
    x: Tensor,
    others: list[Tensor],
    *,
    by: float = 1.0,
    turn: complex | None = None,
    dims: list[int] | None = None,
    scales: list[float] | None = None,
) -> Tensor:
    return x + len(others)


class Calls(torch.nn.Module):
    def __init__(self, op: Any, given: dict[str, Any]) -> None:
        super().__init__()
        self.op, self.given = op, given

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.op(x, **{name: [x] if value == "itself" else value for name, value in self.given.items()})
        return result


@pytest.mark.parametrize(
    ("op", "given", "said"),
    [
        (converted, {}, "dtype is left at its default"),
        (valued, {"others": "itself", "by": float("-inf")}, "by is -inf"),
        (valued, {"others": "itself", "turn": 1j}, "turn is 1j"),
        (valued, {"others": "itself", "scales": [1.0, float("nan")]}, "scales is nan"),
        (valued, {"others": []}, "others is an empty list"),
        (valued, {"others": "itself", "dims": []}, "dims is an empty list"),
    ],
)
def test_a_value_that_a_compiled_model_loses_is_refused(
    op: Any, given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    program = torch.export.export(Calls(op, given), (torch.ones(2),))
    with pytest.raises(ValueError, match=f"{op.name}: {said}, which a compiled model cannot hold; "):
        ow.package(program, tmp_path / "model.pt2", compiled=True)
    assert not (tmp_path / "model.pt2").exists()
