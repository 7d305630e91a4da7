"""Memory that the judge and the candidate's process share: the arguments of calls, each between bands of known bytes.

The judge writes them and looks at them afterwards by itself: nothing that the candidate does to Python in its process
changes what is seen here. Calls of the same shapes lie at the same addresses.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

BAND = 4096
ALIGNED = 512
"""As CUDA's allocator aligns."""
ROOM = 64 << 20
"""Bytes to begin with; those that nobody touches take no memory."""
FAR = 64
"""How many times larger than its elements a tensor's memory may be, to be copied as it lies; else it lies densely."""


class Spot(NamedTuple):
    """Where a tensor lies: the bytes of its memory, and how it lies in them."""

    dtype: str
    shape: list[int]
    stride: list[int]
    begin: int
    size: int
    offset: int
    """Elements from there to the first of it."""


def dtype_of(name: str) -> torch.dtype:
    """A dtype by its name; ValueError where there is none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"there is no dtype {name!r}")
    return found


class Shared:
    """A file that has no name in any folder, for whoever knows its path: nobody can remove it."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("opwright")
        self.path = f"/proc/{os.getpid()}/fd/{self.fd}"

    def close(self) -> None:
        """Give its memory back, once nobody maps it."""
        os.close(self.fd)


class Arena:
    """The judge's side: a file in memory, in which arguments are laid out."""

    def __init__(self) -> None:
        self._file = Shared()
        self.path = self._file.path
        self._resize(ROOM)

    end = 0
    """Where the last tensor's band ends."""

    def _resize(self, room: int) -> None:
        os.ftruncate(self._file.fd, room)
        self.room = room
        self.bytes = mapped(self.path, room)

    def close(self) -> None:
        """Give the memory back."""
        self._file.close()

    def put(self, tensors: Sequence[Tensor], around: int = 0, after: int = 0) -> list[Spot]:
        """Lay tensors out as they lie, their gaps and the bands around them made of one byte. What lies before the byte
        `after` stays."""
        spots, end = [], after + BAND
        for t in tensors:
            spot = _spot(t, end)
            spots.append(spot)
            end = -(-(spot.begin + spot.size + BAND) // ALIGNED) * ALIGNED
        if end > self.room:
            self._resize(2 * end)
        self.bytes[after:end].fill_(around)
        for spot, t in zip(spots, tensors, strict=True):
            fill(view(spot, self.bytes), t)
        self.end = end
        return spots

    def outside(self, spots: Sequence[Spot], around: int) -> tuple[int, int] | None:
        """Which spot's band was written to, and at which byte of it counted from the spot's begin; None: none."""
        for i, spot in enumerate(spots):
            until = spots[i + 1].begin if i + 1 < len(spots) else self.end
            after = (self.bytes[spot.begin + spot.size : until] != around).nonzero()
            if len(after):
                return i, spot.size + int(after[0])
        before = (self.bytes[:BAND] != around).nonzero()
        return (0, int(before[-1]) - BAND) if len(before) and spots else None


def _spot(t: Tensor, begin: int) -> Spot:
    name = str(t.dtype).removeprefix("torch.")
    shape, stride = list(t.shape), list(t.stride())
    if t.numel() == 0:
        return Spot(name, shape, stride, begin, 0, 0)
    extent = sum((s - 1) * k for s, k in zip(shape, stride, strict=True)) + 1
    if extent > FAR * t.numel() + 4096:
        dense = torch.empty(shape, device="meta").stride()
        return Spot(name, shape, list(dense), begin, t.numel() * t.element_size(), 0)
    lead = int(t.storage_offset()) % 64
    return Spot(name, shape, stride, begin, (lead + extent) * t.element_size(), lead)


def mapped(path: str, room: int) -> Tensor:
    """The bytes of a file, shared with whoever else maps it."""
    with open(path, "r+b") as file:
        return torch.frombuffer(mmap.mmap(file.fileno(), room), dtype=torch.uint8)


def view(spot: Spot, memory: Tensor) -> Tensor:
    """The tensor at a spot of an arena."""
    dtype = dtype_of(spot.dtype)
    if spot.size == 0:
        return torch.empty_strided(spot.shape, spot.stride, dtype=dtype, device=memory.device)
    part = memory[spot.begin : spot.begin + spot.size].view(dtype)
    return part.as_strided(spot.shape, spot.stride, part.storage_offset() + spot.offset)


def fill(laid: Tensor, t: Tensor) -> None:
    """The values of a tensor into one that lies as it does."""
    if t.numel() == 0:
        return
    if shares(t) and laid.stride() == t.stride():
        line(laid).copy_(line(t.detach()))
    else:
        laid.copy_(t.detach())


def shares(t: Tensor) -> bool:
    """Whether elements of a tensor share memory."""
    extent = sum((s - 1) * k for s, k in zip(t.shape, t.stride(), strict=True)) + 1
    return extent < t.numel() or (0 in t.stride() and t.numel() > 1)


def line(t: Tensor) -> Tensor:
    """All memory from a tensor's first element to its last."""
    extent = sum((s - 1) * k for s, k in zip(t.shape, t.stride(), strict=True)) + 1
    return t.as_strided((extent,), (1,), t.storage_offset())


def lies_in(r: object, t: Tensor) -> bool:
    """Whether a result begins in the memory of a tensor."""
    if not isinstance(r, Tensor) or r.layout != torch.strided or r.device != t.device or not (r.numel() and t.numel()):
        return False
    extent = sum((s - 1) * k for s, k in zip(t.shape, t.stride(), strict=True)) + 1
    return 0 <= r.data_ptr() - t.data_ptr() < extent * t.element_size()
