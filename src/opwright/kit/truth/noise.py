"""What a reference loses in a dtype: its operations in float64, each result moved by a rounding error at random.

Comparing with one run in the dtype itself would not do: its errors cancel by chance, and then a right kernel whose
errors do not would be called wrong. Moving every intermediate result also finds out where a function is
discontinuous, and how far its results may then jump.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.spec.values import tensors
from opwright.kit.truth.tolerance import eps

RUNS = 32
"""At most: of a function that jumps, half of them lie on either side. They end as soon as a result is explained."""


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


class Step(NamedTuple):
    """An operation of a run, neither a view nor a cast: a run in float64 has other casts."""

    name: str
    computed: torch.dtype | None
    """The dtype that it is computed in; None: nothing is computed."""
    cast: torch.dtype | None = None
    """The narrower dtype that its result was cast to, if it was."""


@cache
def _is_recorded(func: Any) -> bool:
    view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    return not view and torch.Tag.inplace_view not in func.tags and func._opname != "_to_copy"


@cache
def _writes(func: Any) -> bool:
    """Whether an operation returns what it wrote to."""
    return any(r.alias_info is not None and r.alias_info.is_write for r in func._schema.returns)


class Recorder(private.TorchDispatchMode):
    """Notes to which dtype every result is rounded, and whether anything was computed across elements."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Step] = []
        self.pointwise = True
        self._made: dict[int, int] = {}  # which step, by storage; whatever takes a storage's place is noted in turn

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._opname
        if name == "_to_copy":
            self._note_cast(args[0], out)
        elif _is_recorded(func):
            computed = None if name in EXACT else next((t.dtype for t in tensors(out)), torch.float32)
            self.seen.append(Step(name, computed, out.dtype if name == "copy_" and _narrows(args[1], out) else None))
            self.pointwise = self.pointwise and (name in EXACT or torch.Tag.pointwise in func.tags)
            for t in tensors(out):
                self._made[_storage(t)] = len(self.seen) - 1
        return out

    def _note_cast(self, source: Tensor, out: Tensor) -> None:
        """What is cast to a narrower dtype was in effect rounded to it where it was made."""
        at = self._made.get(_storage(source))
        if at is None:
            self._made.pop(_storage(out), None)
            return
        self._made[_storage(out)] = at
        if _narrows(source, out):
            self.seen[at] = self.seen[at]._replace(cast=out.dtype)


def _storage(t: Tensor) -> int:
    return t.untyped_storage()._cdata if t.layout == torch.strided else id(t)


def _narrows(source: Tensor, to: Tensor) -> bool:
    return _floats(source) and _floats(to) and eps(to.dtype) > eps(source.dtype)


class Noise(private.TorchDispatchMode):
    """Moves every rounded result by up to a rounding error of the dtype that it has in the recorded run."""

    def __init__(self, recorded: list[Step], dtype: torch.dtype, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorded, self.dtype = recorded, dtype
        self.at = 0
        self.generator = torch.Generator().manual_seed(seed)

    def _step(self, name: str) -> Step:
        step = Step(name, None if name in EXACT else self.dtype)
        if self.at < len(self.recorded) and self.recorded[self.at].name == name:
            step = self.recorded[self.at]
        self.at += 1
        if step.computed is not None and not (step.computed.is_floating_point or step.computed.is_complex):
            return step._replace(computed=self.dtype)
        return step

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._opname
        step = self._step(name) if _is_recorded(func) else None
        if step is None or (step.computed is None and step.cast is None):
            return func(*args, **kwargs)
        rounding, steps, moves = 0.0, 0.0, 0.0
        written = _writes(func)
        if step.computed is not None:
            rounding = eps(step.computed)
            across = torch.Tag.pointwise not in func.tags
            if across and not written:
                # Sums may be taken in any order, one after the other at worst, with errors like a random walk's.
                steps = eps(_accumulates(step.computed)) * (1 + 0.1 * math.sqrt(_terms(name, args)))
            moves = steps if across else 0.0 if name in ATOMIC else rounding
        if moves and not written:
            args = tuple(self._move(a, moves) if isinstance(a, Tensor) else a for a in args)
        if step.cast is not None:
            rounding += eps(step.cast)
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
    recorded: list[Step],
    dtype: torch.dtype,
    seed: int,
) -> Iterator[list[Tensor | None]]:
    """The results of `run` on what `make` gives, with rounding errors drawn anew each time."""
    for i in range(RUNS):
        given = make()
        with Noise(recorded, dtype, seed * RUNS + i):
            found = run(given)
        yield found
