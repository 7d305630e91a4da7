"""How far from the truth a right result may lie: the numbers, and what they are multiplied with."""

from __future__ import annotations

import torch
from torch import Tensor

LOSS = 8.0
"""How many times what the reference itself loses."""
ULPS = {
    torch.float64: 8.0,
    torch.float32: 4.0,
    torch.bfloat16: 2.0,
    torch.float16: 2.0,
    torch.complex128: 8.0,
    torch.complex64: 4.0,
}
"""What a library's exp or tanh may be off by. float64 has no wider oracle, so both sides err; half types are computed
in float32 and rounded once."""
FEW = 16.0
"""Units in the last place for a tensor as a whole: one run of the reference may lose nothing by chance."""


def eps(dtype: torch.dtype) -> float:
    """The distance from 1 to the next number of a dtype."""
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def accumulates(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums are kept in: PyTorch adds up half and bfloat16 in float32, and so must a kernel."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def smallest(dtype: torch.dtype) -> float:
    """The smallest number above zero."""
    return float(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)


def least(dtype: torch.dtype) -> float:
    """What a result may be off by, however small it is: some of the smallest numbers. float64 has no wider oracle, so
    that a formula which divides by what overflows gives 0 there for all below the largest number's reciprocal."""
    info = torch.finfo(dtype)
    return 4 * smallest(dtype) if info.bits < 64 else 1 / info.max


def units(dtype: torch.dtype) -> float:
    """What anybody may be off by, as a share of the value."""
    return ULPS.get(dtype, 4.0) * eps(dtype)


def within(value: Tensor, target: Tensor, allowed: Tensor | float, dtype: torch.dtype) -> Tensor:
    """Whether values lie within what is allowed of a target; NaN is near NaN, an infinity near itself."""
    close = (value - target).abs() <= allowed
    alike = (value == target) | (value.isnan() & target.isnan())
    if dtype.is_floating_point:
        # What is finite in float64 may be too large for the dtype; rounding decides.
        most = torch.finfo(dtype).max * (1 - 4 * torch.finfo(dtype).eps)
        alike |= value.isinf() & (target.abs() >= most) & (value.sign() == target.sign())
    else:
        alike |= ~value.isfinite() & ~target.isfinite()
    return close | alike


def widen(t: Tensor, to: torch.dtype = torch.float64) -> Tensor:
    """A floating-point tensor in float64 (or another dtype), a complex one likewise; others as they are.

    >>> widen(torch.ones(2)).dtype
    torch.float64
    """
    if t.is_complex():
        return t.detach().to(to.to_complex())
    return t.detach().to(to) if t.is_floating_point() else t
