"""What a reference loses in a dtype: its operations in float64, each result moved by a rounding error at random.

Comparing with one run in the dtype itself would not do: its errors cancel by chance, and then a right kernel whose
errors do not would be called wrong. Moving every intermediate result also finds out where a function is
discontinuous, and how far its results may then jump.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from opwright.kit.values import tensors

RUNS = 8
"""Enough that no element's errors cancel in all of them: with uniform errors once in 10¹⁰ elements."""


def _names(text: str) -> frozenset[str]:
    """Names of PyTorch's functions; as one text, since operators of this library may be called the same."""
    return frozenset(text.split())


# Operations that move values without computing any.
EXACT = {
    "_to_copy", "abs", "alias", "amax", "amin", "arange", "bernoulli", "cat", "clamp", "clamp_max", "clamp_min",
    "clone", "conj_physical", "constant_pad_nd", "copy", "copy_", "detach", "empty", "empty_like", "empty_strided",
    "expand", "fill", "fill_", "flip", "full", "full_like", "gather", "index", "index_select", "lift_fresh",
    "masked_fill", "masked_fill_", "max", "maximum", "min", "minimum", "neg", "new_empty", "new_empty_strided",
    "new_full", "new_ones", "new_zeros", "ones", "ones_like", "rand", "randn", "relu", "resize_", "roll",
    "scalar_tensor", "select_backward", "set_", "sign", "slice_backward", "sort", "stack", "topk", "where",
    "zeros", "zeros_like",
}  # fmt: skip
WITHIN = _names(
    """
    addmm addmv baddbmm bmm convolution dot linear mm mv vdot
    """
)
"""Operations that sum over a dimension which their result does not show."""


# Functions of numbers that a library computes to a unit or two in the last place. Inside others (gelu, a backward
# formula) terms may cancel, which shows when their arguments are moved.
ATOMIC = _names(
    """
    acos acosh add asin asinh atan atan2 atanh ceil cos cosh div erf erfc exp exp2 expm1 floor floor_divide fmod
    frac hypot log log10 log1p log2 mul pow reciprocal remainder round rsqrt rsub sigmoid sin sinh sqrt square sub
    tan tanh trunc
    """
)


def rounds(func: Any) -> bool:
    """Whether an operation's result is rounded."""
    returns = func._schema.returns
    if any(r.alias_info is not None and not r.alias_info.is_write for r in returns):
        return False  # a view
    return func._opname not in EXACT and torch.Tag.inplace_view not in func.tags


class Recorder(TorchDispatchMode):
    """Notes the dtype of every result that is rounded, and whether anything was computed across elements."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, torch.dtype]] = []
        self.pointwise = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if rounds(func):
            kind = next((t.dtype for t in tensors(out)), torch.float32)
            self.seen.append((func._opname, kind))
            self.pointwise = self.pointwise and torch.Tag.pointwise in func.tags
        return out


class Noise(TorchDispatchMode):
    """Moves every rounded result by up to a rounding error of the dtype that it has in the recorded run."""

    def __init__(self, recorded: list[tuple[str, torch.dtype]], dtype: torch.dtype, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorded, self.dtype = recorded, dtype
        self.at = 0
        self.generator = torch.Generator().manual_seed(seed)

    def _kind(self, name: str) -> torch.dtype:
        kind = self.dtype
        if self.at < len(self.recorded) and self.recorded[self.at][0] == name:
            kind = self.recorded[self.at][1]
        self.at += 1
        return kind if kind.is_floating_point or kind.is_complex else self.dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not rounds(func):
            return func(*args, **kwargs)
        across = torch.Tag.pointwise not in func.tags
        name = func._opname
        kind = self._kind(name)
        rounding, steps = eps(kind), 0.0
        written = any(r.alias_info is not None and r.alias_info.is_write for r in func._schema.returns)
        if across and not written:
            # Sums may be taken in any order, one after the other at worst, with errors like a random walk's.
            steps = eps(_accumulates(kind)) * (1 + 0.1 * math.sqrt(_terms(name, args)))
        moves = steps if across else 0.0 if name in ATOMIC else rounding
        if moves and not written:
            args = tuple(self._move(a, moves) if isinstance(a, Tensor) else a for a in args)
        out = func(*args, **kwargs)
        if written:
            return out.mul_(self._factor(out, rounding)) if isinstance(out, Tensor) and _floats(out) else out
        if isinstance(out, Tensor):
            return self._move(out, rounding + steps)
        if isinstance(out, (tuple, list)):
            return type(out)(self._move(o, rounding + steps) if isinstance(o, Tensor) else o for o in out)
        return out

    def _move(self, t: Tensor, by: float) -> Tensor:
        return (t * self._factor(t, by)).to(t.dtype) if _floats(t) else t

    def _factor(self, t: Tensor, by: float) -> Tensor:
        real = torch.float32 if t.dtype.itemsize < 8 else torch.float64
        return torch.rand(t.shape, generator=self.generator, dtype=real).mul_(2 * by).add_(1 - by).to(t.device)


def _floats(t: Tensor) -> bool:
    return (t.dtype.is_floating_point or t.dtype.is_complex) and t.numel() > 0 and t.layout == torch.strided


def eps(dtype: torch.dtype) -> float:
    """The distance from 1 to the next number of a dtype."""
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def _accumulates(dtype: torch.dtype) -> torch.dtype:
    """PyTorch adds up half and bfloat16 in float32, and so must a kernel."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _terms(name: str, args: Any) -> float:
    given = [a for a in args if isinstance(a, Tensor)]
    if not given:
        return 1.0
    if name in WITHIN:
        return float(max((a.shape[-1] for a in given if a.dim()), default=1))
    return float(max(a.numel() for a in given))


def measure(
    run: Callable[[Any], list[Tensor | None]],
    make: Callable[[], Any],
    recorded: list[tuple[str, torch.dtype]],
    dtype: torch.dtype,
    seed: int,
    runs: int = RUNS,
) -> list[list[Tensor | None]]:
    """The results of `run` on what `make` gives, with rounding errors drawn anew each time."""
    found = []
    for i in range(runs):
        given = make()
        with Noise(recorded, dtype, seed * RUNS + i):
            found.append(run(given))
    return found
