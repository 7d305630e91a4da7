"""What a reference loses in a dtype: its operations in float64, each result moved by a rounding error at random.

Comparing with one run in the dtype itself would not do: its errors cancel by chance, and then a right kernel whose
errors do not would be called wrong. Moving every intermediate result also finds out where a function is
discontinuous, and how far its results may then jump.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.spec.values import tensors
from opwright.kit.truth.tolerance import accumulates, eps, smallest

RUNS = 32
"""At most: of a function that jumps, half of them lie on either side. They end as soon as a result is explained."""


def names(text: str) -> frozenset[str]:
    """Names of PyTorch's functions; as one text, since operators of this library may be called the same."""
    return frozenset(text.split())


# Operations that move values without computing any.
EXACT = {
    "_to_copy", "abs", "alias", "amax", "amin", "aminmax", "arange", "argmax", "argmin", "bernoulli", "bucketize",
    "cat", "clamp", "clamp_max", "clamp_min", "clone", "conj_physical", "constant_pad_nd", "copy", "copy_",
    "cummax", "cummin", "detach", "empty", "empty_like", "empty_strided", "expand", "fill", "fill_", "flip", "full",
    "full_like", "gather", "index", "index_select", "kthvalue", "lift_fresh", "masked_fill", "masked_fill_",
    "masked_select", "max", "max_pool2d_with_indices", "max_pool3d_with_indices", "maximum", "min", "minimum",
    "mode", "neg", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "nonzero", "ones",
    "ones_like", "rand", "randn", "reflection_pad1d", "reflection_pad2d", "relu", "repeat", "replication_pad1d",
    "replication_pad2d", "resize_", "roll", "scalar_tensor", "searchsorted", "select_backward", "set_", "sign",
    "slice_backward", "sort", "stack", "topk", "tril", "triu", "where", "zeros", "zeros_like",
}  # fmt: skip
SELECTING = names(
    """
    amax amin aminmax clamp clamp_max clamp_min cummax cummin kthvalue max max_pool2d_with_indices
    max_pool3d_with_indices maximum min minimum mode relu sort topk
    """
)
"""Those that choose among numbers by comparing them: 0 and -0 are equal, and either may come out."""
POINTING = names(
    """
    cummax cummin kthvalue max max_pool2d_with_indices max_pool3d_with_indices median min mode sort topk
    """
)
"""Those that also say where what they chose stood, to which a gradient then goes: of equals, to any of them."""
WITHIN = names(
    """
    addmm addmv baddbmm bmm convolution dot linear mm mv vdot
    """
)
"""Operations that sum over a dimension which their result does not show."""


# Functions of numbers that a library computes to a unit or two in the last place. Inside others (gelu, a backward
# formula) terms may cancel, which shows when their arguments are moved.
ATOMIC = names(
    """
    acos acosh add asin asinh atan atan2 atanh ceil cos cosh div erf erfc exp exp2 expm1 floor floor_divide fmod
    frac hypot log log10 log1p log2 mul pow reciprocal remainder round rsqrt rsub sigmoid sin sinh sqrt square sub
    tan tanh trunc
    """
)


# Functions whose formulas cancel inside, however their arguments are moved: 1 + erf(x) of a gelu; how far between two
# pixels a place lies, which is a small difference of large places. They lose a share of their arguments.
CANCELLING = names(
    """
    gelu gelu_backward mish mish_backward grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d
    grid_sampler_3d_backward upsample_linear1d upsample_linear1d_backward upsample_bilinear2d
    upsample_bilinear2d_backward upsample_trilinear3d upsample_trilinear3d_backward upsample_bicubic2d
    upsample_bicubic2d_backward
    """
)


# The logarithm of a sum is subtracted from what it is about as large as. Backwards, of one addend that is not zero,
# grad and its sum move together, and what cancels between them does not show; and a kernel that keeps the logarithm
# computes exp(x - that), off by a share of x.
LOGARITHMIC = names("_log_softmax _log_softmax_backward_data logsumexp")


# Functions that multiply by how far between two places something lies: whether that is 0, so that a NaN there does not
# matter, or hardly more, depends on how it is computed.
WEIGHING = ("grid_sampler", "upsample_")


class Step(NamedTuple):
    """An operation of a run, neither a view nor a cast: a run in float64 has other casts."""

    name: str
    computed: torch.dtype | None
    """The dtype that it is computed in; None: nothing is computed."""
    cast: torch.dtype | None = None
    """The narrower dtype that its result was cast to, if it was."""


@cache
def is_recorded(func: Any) -> bool:
    view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    return not view and torch.Tag.inplace_view not in func.tags and func._opname != "_to_copy"


@cache
def writes(func: Any) -> bool:
    """Whether an operation returns what it wrote to."""
    return any(r.alias_info is not None and r.alias_info.is_write for r in func._schema.returns)


class Recorder(private.TorchDispatchMode):
    """Notes to which dtype every result is rounded, and whether anything was computed across elements."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Step] = []
        self.pointwise = True
        self.selects = self.weighs = False
        self._made: dict[int, int] = {}  # which step, by storage; whatever takes a storage's place is noted in turn

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._opname
        if name == "_to_copy":
            self._note_cast(args[0], out)
        elif is_recorded(func):
            computed = None if name in EXACT else next((t.dtype for t in tensors(out)), torch.float32)
            self.seen.append(Step(name, computed, out.dtype if name == "copy_" and _narrows(args[1], out) else None))
            self.pointwise = self.pointwise and (name in EXACT or torch.Tag.pointwise in func.tags)
            self.selects = self.selects or name in SELECTING
            self.weighs = self.weighs or name.startswith(WEIGHING)
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
    return is_float(source) and is_float(to) and eps(to.dtype) > eps(source.dtype)


class Noise(private.TorchDispatchMode):
    """Moves every rounded result by up to a rounding error of the dtype that it has in the recorded run."""

    def __init__(self, recorded: list[Step], dtype: torch.dtype, seed: int, *, tears: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorded, self.dtype, self.tears = recorded, dtype, tears
        """Whether of equal numbers another may be chosen than the reference does."""
        self.at = 0
        self.generator = torch.Generator().manual_seed(seed)

    def next_step(self, name: str) -> Step:
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
        step = self.next_step(name) if is_recorded(func) else None
        if step is not None and self.tears and name in POINTING:
            args = tuple(self._torn(a) if isinstance(a, Tensor) else a for a in args)
        if step is None or (step.computed is None and step.cast is None):
            return func(*args, **kwargs)
        rounding, steps, moves = 0.0, 0.0, 0.0
        written = writes(func)
        across = torch.Tag.pointwise not in func.tags
        if step.computed is not None:
            rounding = eps(step.computed)
            if across and not written:
                steps = eps(accumulates(step.computed)) * _additions(name, args, accumulates(step.computed))
            moves = steps if across else 0.0 if name in ATOMIC else rounding
        kept = [a for a in args if isinstance(a, Tensor)]
        exact = across and step.computed is not None and _adds_up(name, kept, step.computed)
        if moves and not written and not exact:
            args = tuple(self._move(a, moves, None) if isinstance(a, Tensor) else a for a in args)
        if step.cast is not None:
            rounding += eps(step.cast)
        out = func(*args, **kwargs)
        dtype = step.cast or step.computed or self.dtype
        if exact and step.cast is None:
            return out
        if written:
            return out.copy_(self._move(out, rounding, dtype)) if isinstance(out, Tensor) and is_float(out) else out
        out = _each(out, lambda o: self._move(o, rounding + steps, dtype, _exactly(name, args, kwargs, o, dtype)))
        if name in CANCELLING and step.computed is not None:
            lost = eps(step.computed) * _extent(name, kept)
            return _each(out, lambda o: o + lost * (2 * self._random(o) - 1) if is_float(o) else o)
        if name in LOGARITHMIC and step.computed is not None:
            *given, logarithms = [largest(t) for t in kept]
            lost = eps(step.computed) * max(1.0, logarithms) * math.prod(given)
            return _each(out, lambda o: o + lost * (2 * self._random(o) - 1) if is_float(o) else o)
        return out

    def _torn(self, t: Tensor) -> Tensor:
        """A tensor no two of whose elements are equal, by much less than anything it is compared with."""
        if not is_float(t) or t.is_complex():
            return t
        return t + (t.abs() * eps(torch.float64) * 4 + TINY) * (2 * self._random(t) - 1).to(t.dtype)

    def _move(self, t: Tensor, by: float, dtype: torch.dtype | None, exact: Tensor | None = None) -> Tensor:
        """A tensor moved by a share of its values; what is exact stays, and what is subnormal in a dtype moves by its
        smallest number."""
        if not is_float(t):
            return t
        moved = (t * self._factor(t, by)).to(t.dtype)
        if dtype is None or not t.is_floating_point() or not dtype.is_floating_point:
            return moved
        small = (t.abs() < torch.finfo(dtype).smallest_normal) & (t != 0)
        if bool(small.any()):
            moved = torch.where(small, moved + smallest(dtype) * (2 * self._random(t) - 1), moved)
        return moved if exact is None else torch.where(exact, t, moved)

    def _factor(self, t: Tensor, by: float) -> Tensor:
        return self._random(t).mul_(2 * by).add_(1 - by)

    def _random(self, t: Tensor) -> Tensor:
        real = torch.float32 if t.dtype.itemsize < 8 else torch.float64
        return torch.rand(t.shape, generator=self.generator, dtype=real).to(t.device)


def _each(out: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(out, Tensor):
        return change(out)
    if isinstance(out, (tuple, list)):
        return type(out)(change(o) if isinstance(o, Tensor) else o for o in out)
    return out


ROUNDED = names("ceil floor round trunc")
ALGEBRAIC = ROUNDED | names("add sub mul div square floor_divide fmod remainder")
"""Operations whose results are exact where a dtype holds them; a tanh of 1.0 is not."""


def _exactly(name: str, args: Any, kwargs: dict[str, Any], out: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Which elements of a result are exact: a dtype holds them to the last digit, and nothing was lost on the way. Of
    float64, which they are computed in, those that float32 holds: what is exact has few digits."""
    if name not in ALGEBRAIC or not out.is_floating_point() or not dtype.is_floating_point:
        return None
    few = torch.float32 if dtype == torch.float64 else dtype
    if any(isinstance(a, float) and torch.tensor(a, dtype=few).item() != a for a in (*args, *kwargs.values())):
        return None  # 0.1 is rounded before anything is multiplied by it
    exact = out.to(few).to(out.dtype) == out
    if name in ("add", "sub"):  # where one is so small that the other absorbs it, their sum looks exact
        a, b = args[0], args[1] * kwargs.get("alpha", 1)
        exact &= (out - a) == (b if name == "add" else -b)
    elif name == "div" and kwargs.get("rounding_mode") is None:
        exact &= out * args[1] == args[0]
    return exact


FINE = (1.0, 1024.0)
"""Sums of multiples of a reciprocal of these are exact while they are small enough."""


def _adds_up(name: str, given: list[Tensor], dtype: torch.dtype) -> bool:
    """Whether every way to add up these numbers gives the same, to the last digit."""
    floats = [t for t in given if is_float(t)]
    if not floats or name not in SUMS or any(t.is_complex() for t in floats):
        return False
    if name in WITHIN:
        most = math.prod(float(t.abs().max()) for t in floats) * terms(name, given)
    else:
        most = sum(float(t.abs().sum()) for t in floats)
    for fine in FINE:
        if all(bool((t * fine == (t * fine).round()).all()) for t in floats):
            return most * fine ** len(floats) < 1 / eps(accumulates(dtype))
    return False


SUMS = WITHIN | names("sum cumsum index_add scatter_add mean")


def _additions(name: str, args: Any, dtype: torch.dtype) -> float:
    """Rounding errors of a sum, in units of one. Sums may be taken in any order, one after the other at worst, with
    errors like a random walk's; those of equal addends are equal too, and do not cancel; nor do those of so many that
    one of them is hardly more than a rounding error of the sum."""
    count = terms(name, args)
    alike = count if count * eps(dtype) > 0.1 else count / max(1.0, _different(args))
    return 1 + 0.1 * math.sqrt(count) + 0.25 * alike


TINY = 1e-300
"""Above zero in float64, and nothing beside any other number."""
DIGITS = 2.0**10
"""Numbers that share so many leading digits round alike."""


def _different(args: Any) -> float:
    """How many different numbers there are among addends, about."""
    found = 1.0
    for t in (a for a in args if isinstance(a, Tensor) and is_float(a) and not a.is_complex()):
        mantissa, exponent = torch.frexp(t.detach().flatten()[: 1 << 16].double())
        found = max(found, float(torch.unique((mantissa * DIGITS).round() + exponent * 4 * DIGITS).numel()))
    return found


def _extent(name: str, given: list[Tensor]) -> float:
    """How large what cancels inside of a function is, at most: its arguments, or places between them."""
    floats = [t for t in given if is_float(t)]
    size = max((float(t.abs().nan_to_num(0, 0, 0).max()) for t in floats), default=0.0)
    return size if name.startswith(("gelu", "mish")) else size * max((s for t in floats for s in t.shape), default=1)


def is_float(t: Tensor) -> bool:
    if t._is_zerotensor():  # PyTorch's zeros without memory, as of the gradient of sgn: exact, and nobody may read them
        return False
    return (t.dtype.is_floating_point or t.dtype.is_complex) and t.numel() > 0 and t.layout == torch.strided


def terms(name: str, args: Any) -> float:
    given = [a for a in args if isinstance(a, Tensor)]
    if not given:
        return 1.0
    if name in WITHIN:
        return float(max((a.shape[-1] for a in given if a.dim()), default=1))
    return float(max(a.numel() for a in given))


def largest(t: Tensor) -> float:
    return float(t.abs().nan_to_num(0, 0, 0).max()) if is_float(t) else 0.0


def measure(
    run: Callable[[Any], list[Tensor | None]],
    make: Callable[[], Any],
    recorded: list[Step],
    dtype: torch.dtype,
    seed: int,
    *,
    tears: bool = False,
) -> Iterator[list[Tensor | None] | None]:
    """The results of `run` on what `make` gives, with rounding errors drawn anew each time; None where they lead it to
    an error, as of a matrix that is hardly positive definite."""
    for i in range(RUNS):
        given, found = make(), None
        with suppress(Exception), Noise(recorded, dtype, seed * RUNS + i, tears=tears):
            found = run(given)
        yield found
