"""The ways in which a tensor can lie in memory, as a dimension of the cases."""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable

import torch
from torch import Tensor

PLAIN = "plain"
MIXED = "mixed"
APART = ("only", "but")
"""One tensor alone is transposed (`only1`), or all but one are (`but1`): a kernel may ask two of three for their
strides, and may take tensors that fill their memory, each in an order of its own, for alike."""
FAR = 2**31 + 5
"""A stride, in elements, that 32 bits do not hold."""


def lay(t: Tensor, layout: str, rng: random.Random, *, written: bool = False) -> Tensor:
    """A tensor of the same shape and dtype that lies in memory as `layout` says; `t` itself where it cannot.

    Values are those of `t`, except where elements share memory. A tensor that will be written to never shares any.
    """
    if layout == MIXED:
        layout = rng.choice([PLAIN, *(name for name in LAYOUTS if name not in (MIXED, "far"))])
    if layout == PLAIN or t.layout != torch.strided or (written and layout in SHARING):
        return t
    return LAYOUTS[layout](t, rng)


def places(count: int, rng: random.Random) -> list[str]:
    """The layouts in which one of so many tensors lies otherwise than the rest."""
    each = [f"{kind}{k}" for k in range(count) for kind in (APART if count > 2 else APART[:1])]
    return (each if len(each) <= MOST_PLACES else rng.sample(each, MOST_PLACES)) if count > 1 else []


MOST_PLACES = 6


def apart(t: Tensor, layout: str, which: int) -> Tensor:
    """The tensor transposed, if it is one of those that are, all in one order: the first dimension lies closest."""
    chosen = layout.removeprefix("only") == str(which) or (layout[:3] == "but" and layout[3:] != str(which))
    if not chosen or t.dim() < 2 or t.layout != torch.strided:
        return t
    back = [*range(t.dim() - 1, -1, -1)]
    return t.permute(back).contiguous().permute(back)


def _contiguous(t: Tensor, rng: random.Random) -> Tensor:
    return t if t.is_contiguous() else t.contiguous()


def _transposed(t: Tensor, rng: random.Random) -> Tensor:
    if t.dim() < 2:
        return t
    order = list(range(t.dim()))
    while order == sorted(order):
        rng.shuffle(order)
    back = [order.index(d) for d in range(t.dim())]
    return t.permute(order).contiguous().permute(back)


def _sliced(t: Tensor, rng: random.Random) -> Tensor:
    """Every second or third element of a larger tensor, from somewhere in its middle."""
    if t.dim() == 0:
        return _misaligned(t, rng)
    step = [rng.choice((1, 2, 3)) for _ in t.shape]
    step[-1] = max(step[-1], 2)
    begin = [rng.randrange(3) for _ in t.shape]
    outer = surroundings([s * k + b + 1 for s, k, b in zip(t.shape, step, begin, strict=True)], t)
    part = outer
    for d, (s, k, b) in enumerate(zip(t.shape, step, begin, strict=True)):
        part = part.narrow(d, b, s * k) if s else part.narrow(d, b, 0)
        part = part[(slice(None),) * d + (slice(None, None, k),)]
    return part.copy_(t)


def _rows(t: Tensor, rng: random.Random) -> Tensor:
    """Contiguous rows with room between them."""
    if t.dim() < 2:
        return t
    outer = surroundings([*t.shape[:-1], t.shape[-1] + 3], t)
    return outer.narrow(-1, 0, t.shape[-1]).copy_(t)


def _misaligned(t: Tensor, rng: random.Random) -> Tensor:
    """Contiguous, one element past what an allocator would align."""
    outer = surroundings([t.numel() + 8], t)
    return outer[1 : 1 + t.numel()].view(t.shape).copy_(t)


def _expanded(t: Tensor, rng: random.Random) -> Tensor:
    """One element or row, repeated by a stride of 0."""
    long = [d for d in range(t.dim()) if t.shape[d] > 1]
    if not long:
        return t
    d = rng.choice(long)
    return t.narrow(d, 0, 1).contiguous().expand(t.shape)


def _channels_last(t: Tensor, rng: random.Random) -> Tensor:
    if t.dim() == 4:
        return t.contiguous(memory_format=torch.channels_last)
    return t.contiguous(memory_format=torch.channels_last_3d) if t.dim() == 5 else t


def _overlapping(t: Tensor, rng: random.Random) -> Tensor:
    """Rows that share all but one of their elements, as a sliding window's do."""
    if t.dim() < 2 or t.numel() < 2:
        return t
    return t.contiguous().flatten().clone().as_strided(t.shape, [1] * t.dim())


def _far(t: Tensor, rng: random.Random) -> Tensor:
    """A few rows, each further from the last than 32 bits can count. The memory in between is never touched."""
    if t.device.type != "cpu" or t.dim() == 0 or not 1 < t.shape[0] <= 8 or t.numel() == 0 or t.numel() > 4096:
        return t
    row = t[0].contiguous()
    stride = [FAR + row.numel(), *row.stride()]
    size = ((t.shape[0] - 1) * stride[0] + row.numel()) * t.element_size()
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        memory = mmap.mmap(-1, size, flags=flags)
    except (OSError, ValueError, AttributeError, OverflowError):
        return t  # a machine that lends no address space without memory behind it
    return torch.frombuffer(memory, dtype=t.dtype).as_strided(t.shape, stride).copy_(t)


LAYOUTS: dict[str, Callable[[Tensor, random.Random], Tensor]] = {
    PLAIN: lambda t, rng: t,
    "contiguous": _contiguous,
    "transposed": _transposed,
    "sliced": _sliced,
    "rows": _rows,
    "misaligned": _misaligned,
    "expanded": _expanded,
    "channels_last": _channels_last,
    "overlapping": _overlapping,
    "far": _far,
    MIXED: lambda t, rng: t,
}
SHARING = ("expanded", "overlapping")
"""Layouts in which elements share memory, so that nobody may write to them."""


def surroundings(shape: list[int], t: Tensor) -> Tensor:
    """Memory around a tensor, of values that no right result depends on and a wrong one shows."""
    if t.dtype.is_floating_point or t.dtype.is_complex:
        return torch.full(shape, float("nan"), dtype=t.dtype, device=t.device)
    return torch.full(shape, 1 if t.dtype == torch.bool else 77, dtype=t.dtype, device=t.device)
