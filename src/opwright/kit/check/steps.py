"""Small changes of a call's numbers, with which a search goes on from one call to the next.

A step is called what it does: `by:3e-1` (times 0.3), `plus:2e0`, `to:1e4` (some elements are that, or next to it),
`all:5e0`, `abs`, `neg`, `flat` (all equal), `zeros` (some), `again:7` (in another order, with other signs), `arange`,
`eye` (an identity matrix; of a vector its first unit vector).
"""

from __future__ import annotations

import random
from functools import partial

import torch
from torch import Tensor

PLAIN = ("abs", "neg", "flat", "zeros")
LARGEST = 1.7e308
NUMBERED = ("by", "plus", "to", "all", "again")
REGULAR = ("arange", "eye")
FIXED = ("all", *REGULAR)
"""Steps that leave nothing of what was there, so that complex tensors take them as well."""


def is_step(variant: str) -> bool:
    """Whether a variant of values is a step."""
    return variant in PLAIN or variant in REGULAR or variant.partition(":")[0] in NUMBERED


def spelled(number: float) -> str:
    """A number without a point or a plus, which have their own meanings in the id of a case.

    >>> spelled(0.25), spelled(-12345678), spelled(1e30)
    ('25e-2', '-12345678e0', '1e30')
    """
    number = min(max(number, -LARGEST), LARGEST) if number == number else 0.0
    digits, _, exponent = f"{number:.8e}".partition("e")
    before, _, after = digits.partition(".")
    after = after.rstrip("0")
    return f"{before}{after}e{int(exponent) - len(after)}" if number else "0e0"


def take(t: Tensor, step: str, rng: random.Random) -> Tensor:
    """A tensor after one step; of integers too, within their range."""
    if t.is_complex():
        return take(t.real, step, rng).to(t.dtype)
    real = t.is_floating_point()
    least, most = (-torch.finfo(t.dtype).max, torch.finfo(t.dtype).max) if real else _ends(t.dtype)
    draw = partial(torch.randint, size=tuple(t.shape), generator=torch.Generator().manual_seed(rng.getrandbits(48)))
    kind, _, text = step.partition(":")
    number = float(text) if text else 0.0
    wide = t.double()
    if kind == "by":
        changed = wide * number
    elif kind == "plus":
        changed = wide + number
    elif kind in ("to", "all"):
        eps = torch.finfo(t.dtype).eps if real else 1 / max(abs(number), 1.0)
        near = torch.tensor([1.0, 1.0, 1 - eps, 1 + eps, 1 - 1e-3, 1 + 1e-3], dtype=torch.float64)
        wanted = near[draw(6).to("cpu")].to(t.device) * number if kind == "to" else torch.full_like(wide, number)
        changed = torch.where(draw(rng.choice((2, 4, 16))).to(t.device) == 0, wanted, wide) if kind == "to" else wanted
    elif kind in ("abs", "neg"):
        changed = wide.abs() if kind == "abs" else -wide.abs()
    elif kind == "flat":
        changed = torch.full_like(wide, float(wide.flatten()[rng.randrange(t.numel())]))
    elif kind == "arange":
        changed = torch.arange(t.numel(), dtype=wide.dtype, device=t.device).reshape(t.shape)
    elif kind == "eye":
        changed = torch.zeros_like(wide)
        changed[(..., 0) if t.dim() == 1 else ...] = 1.0 if t.dim() < 2 else 0.0
        if t.dim() > 1:
            changed.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    elif kind == "zeros":
        changed = torch.where(draw(rng.choice((2, 8))).to(t.device) == 0, 0.0, wide)
    else:
        order = torch.randperm(t.numel(), generator=torch.Generator().manual_seed(rng.getrandbits(48)))
        changed = wide.flatten()[order.to(t.device)].reshape(t.shape)
        changed = changed * (draw(2).to(t.device) * 2 - 1) if least < 0 else changed
    return changed.clamp(least, most).to(t.dtype)


def _ends(dtype: torch.dtype) -> tuple[float, float]:
    """The ends of a dtype of integers that a double can go to and come back from."""
    info = torch.iinfo(dtype)
    return (float(info.min), float(info.max)) if info.bits < 64 else (-(2.0**62), 2.0**62)
