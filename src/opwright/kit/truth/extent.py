"""Whether the steps of a reference stay within the range of their dtypes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.spec.values import tensors
from opwright.kit.truth import noise
from opwright.kit.truth.noise import EXACT, SUMS, WITHIN, is_float, largest
from opwright.kit.truth.tolerance import accumulates, eps

ROOM = 1 / 16
"""Of a dtype's range, what results may take up before it is asked in which order they were computed."""
LARGE = 2.0**300
"""What an operation may have made an infinity of because it was too large."""
GROWING = noise.names("cosh exp exp2 expm1 sinh")
"""Functions whose results are too large for small numbers."""


class Extent(private.TorchDispatchMode):
    """Notices whether intermediate results of a run in float64 leave the range of the dtypes that they have in the
    recorded run. Then it depends on the order of operations what becomes of them."""

    def __init__(self, recorded: list[noise.Step], dtype: torch.dtype, power: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.runs = noise.Noise(recorded, dtype, 0)
        self.power = power
        self.left = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        step = self.runs.next_step(func._opname) if noise.is_recorded(func) else None
        if step is None or step.computed is None or self.left:
            return out
        dtype = step.cast or step.computed
        most = max((largest(t) for t in tensors(out)), default=0.0)
        given = [a for a in args if isinstance(a, Tensor) and is_float(a)]
        if any(map(_infinite, tensors(out))) and not any(map(_infinite, given)):  # in float64 itself
            grown = func._opname in GROWING or max(map(largest, given), default=0.0) > LARGE
            most = math.inf if grown else most
        if torch.Tag.pointwise not in func.tags and not noise.writes(func):
            # Partial sums, and squares of what is summed.
            each = [largest(a) for a in given]
            inside = math.prod(each) if func._opname in WITHIN else max(each, default=0.0) ** self.power
            self.left = inside * noise.terms(func._opname, args) > ROOM * torch.finfo(accumulates(dtype)).max
            if func._opname not in SUMS and func._opname not in EXACT:  # squares that no digits are left of
                least = min((size for size in each if size), default=1.0)
                self.left |= least**self.power < torch.finfo(accumulates(dtype)).smallest_normal / eps(dtype)
        self.left = self.left or most > ROOM * torch.finfo(dtype).max
        return out


def _infinite(t: Tensor) -> bool:
    return is_float(t) and not bool(t.isfinite().all()) and bool(t.isinf().any())
