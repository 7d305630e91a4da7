"""Autocast for operators that declare what it casts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.calling import Function, gradients, near, same


def declared_autocast(f: Function, g: Function, given: list[Tensor]) -> None:
    """For operators that declare their casts: the reference's dtypes, and its values as far as bfloat16 goes. Kernels
    round less often than the reference does, and float32 results hold those roundings."""

    whole: Any = {"rtol": 0, "share": 2**-5, "least": 1.0}
    with torch.autocast(given[0].device.type, dtype=torch.bfloat16):
        near(f(*given), g(*given), "autocast", **whole)
        near(gradients(f, given), gradients(g, given), "gradients under autocast", **whole)


def uncast(f: Function, g: Function, given: list[Tensor]) -> None:
    """For their gradients: these take what the forward made of its own, and cast nothing."""
    expected = g(*given)
    with torch.autocast(given[0].device.type, dtype=torch.bfloat16):
        same(f(*given), expected, "autocast")
