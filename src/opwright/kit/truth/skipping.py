"""A reference that leaves out what has a weight of 0, as a kernel does that never reads what is masked.

0 times an infinity or a NaN is NaN, so that plain PyTorch tells what a mask hides. A kernel that skips it is right.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opwright.kit import private

PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
"""Operations that add up products, and where the first of the two factors stands."""


class Skipping(private.TorchDispatchMode):
    """Leaves out of sums of products those with a factor that is exactly 0, and what a mask's False multiplies."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._masks: dict[int, Tensor] = {}  # that became numbers, by their storages, which nobody else gets meanwhile

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._opname
        if name == "_to_copy" and self._is_mask(args[0]):
            self._masks[_storage(out)] = out
        elif name == "mul" and isinstance(out, Tensor) and out.is_floating_point():
            for mask in filter(self._is_mask, args):
                out = torch.where(mask == 0, 0.0, out).to(out.dtype)
        elif name in PRODUCTS and out.is_floating_point():
            out = self._product(func, args, kwargs or {}, PRODUCTS[name], out)
        return out

    def _product(self, func: Any, args: Any, kwargs: Any, at: int, out: Tensor) -> Tensor:
        a, b = args[at : at + 2]
        if bool(a.isfinite().all()) and bool(b.isfinite().all()):
            return out
        finite = [torch.where(t.isfinite(), t, torch.zeros_like(t)) for t in (a, b)]
        counted = [(t != 0).double() for t in (a, b)]
        lost = [(~t.isfinite()).double() for t in (a, b)]
        met = torch.matmul(lost[0], counted[1]) + torch.matmul(counted[0], lost[1])
        return torch.where(met > 0, out, func(*args[:at], *finite, *args[at + 2 :], **kwargs))

    def _is_mask(self, value: Any) -> bool:
        return isinstance(value, Tensor) and (value.dtype == torch.bool or _storage(value) in self._masks)


def _storage(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def left_out(
    got: list[Tensor | None], reference: list[Tensor | None], skipping: list[Tensor | None]
) -> list[Tensor | None]:
    """Results, with what a reference that skips gives where both they and the plain reference have NaN: which of the
    products a kernel leaves out is its own choice."""

    def one(g: Tensor | None, r: Tensor | None, s: Tensor | None) -> Tensor | None:
        if g is None or r is None or s is None or not g.shape == r.shape == s.shape:
            return g
        if not all(t.is_floating_point() for t in (g, r, s)):
            return g
        return torch.where(g.isnan() & r.isnan(), s.to(g.dtype), g)

    return [one(*each) for each in zip(got, reference, skipping, strict=True)] if len(got) == len(reference) else got
