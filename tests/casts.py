"""Autocast for operators that declare what it casts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.calling import Function, gradients, same


def declared_autocast(f: Function, g: Function, given: list[Tensor]) -> None:
    """For operators that declare their casts: the reference's dtypes, and its values as far as bfloat16 goes. Kernels
    round less often than the reference does, and float32 results hold those roundings."""

    def near(got: Any, expected: Any, what: str) -> None:
        for i, (a, b) in enumerate(zip(got, expected, strict=True)):
            if a is None or b is None:  # an absent gradient equals one of zeros
                other = b if a is None else a
                assert other is None or not other.any(), f"{what}: result {i}"
            else:
                assert a.dtype == b.dtype, f"{what}: result {i} is {a.dtype}, expected {b.dtype}"
                size = max(1.0, b.double().abs().max().item() if b.numel() else 0.0)
                torch.testing.assert_close(a, b, rtol=0, atol=2**-5 * size, msg=f"{what}: result {i} is off")

    with torch.autocast(given[0].device.type, dtype=torch.bfloat16):
        near(f(*given), g(*given), "autocast")
        near(gradients(f, given), gradients(g, given), "gradients under autocast")


def uncast(f: Function, g: Function, given: list[Tensor]) -> None:
    """For their gradients: these take what the forward made of its own, and cast nothing."""
    expected = g(*given)
    with torch.autocast(given[0].device.type, dtype=torch.bfloat16):
        same(f(*given), expected, "autocast")
