"""Arguments other than the drawn ones, in the same sizes: numbers of other magnitudes, other indices, other options.

What a variant is called says what it does: `2^12` (scaled), `shifted`, `halves`, `alpha=0`, `xs*9` (a list of nine),
`all:1e0@x` (x is all ones), `all:1e0@` (every tensor is).
What the reference then rejects says nothing and is left out.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check import options
from opwright.kit.check.constants import Constants
from opwright.kit.check.drawn import MOST_ELEMENTS
from opwright.kit.check.options import is_whole
from opwright.kit.check.report import NotApplicable
from opwright.kit.check.rising import in_order, rising
from opwright.kit.check.steps import FIXED, is_step, take
from opwright.kit.op import Op
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors

FLOATS = ("shifted", "halves", "clustered", "spread", "late", "last", "integral", "constants")
"""What may happen to floating-point tensors beside being scaled; late: what comes last is by far the largest, the last
eighth or the last alone; integral: all are whole numbers, whose products 32 bits do not hold."""
WHOLE = ("range", "ends", "wide", "folded", "least", "most")
"""What may happen to integers that are data: over their range, at its ends, around what a float and a double hold,
alike in the lower half of their bits, all of them the smallest or the largest."""
INDEX = ("permuted", "repeated", "redrawn", "edges", "equal", "optional", "negative", "stretched")
"""What may happen to integers that are not."""
MASKS = ("true", "false", "rowless")
"""What may happen to masks: all of one kind, or a row without any."""
THIN = "thin"
"""One tensor has size 1 along one dimension (`thin:y:0`), or has lost its first (`thin:y:`): what a reference then
broadcasts, a kernel may read as if nothing had changed."""
BANDS = {
    8: ((2, 7), (8, 40), (40, 110), (-8, -2), (-50, -9), (-200, -51)),
    4: ((2, 7), (8, 20), (20, 55), (-8, -2), (-30, -9), (-100, -31)),
    2: ((2, 4), (4, 8), (5, 12), (-6, -2), (-9, -4), (-12, -6)),
}
"""Exponents of two to scale with, by the bytes of a dtype: a little, much and very much, up and down."""
LATE = {8: 10, 4: 7, 2: 4, 1: 1}
"""Exponents of two by which the last elements of rows are larger: exp of the difference overflows."""
INTEGRAL = {8: 33, 4: 17, 2: 7, 1: 3}
"""Exponents of two by which numbers are larger that become whole ones."""


def scales(dtype: torch.dtype, rng: random.Random) -> list[str]:
    """Variants that scale numbers of a dtype, one of each band."""
    size = 2 if dtype.itemsize < 4 else 4 if torch.finfo(dtype).bits == 32 else 8
    return [f"2^{rng.randint(*band)}" for band in BANDS[size]]


def thin_of(op: Op[..., Any], sample: Sample) -> Iterator[str]:
    """Variants in which one tensor of several has fewer elements."""
    given = op.signature.bind(sample.args, sample.kwargs)
    found = {n: v for n, v in given.items() if isinstance(v, Tensor) and v.dim() and not is_whole(v)}
    if len(found) > 1:
        for name, t in found.items():
            yield from (f"{THIN}:{name}:{d}" for d, size in enumerate(t.shape) if size > 1)
            yield f"{THIN}:{name}:"


class Change:
    """One variant of one sample: `of(sample)` is the changed one, or NotApplicable is raised."""

    def __init__(
        self, op: Op[..., Any], dtype: torch.dtype, variant: str, constants: Constants, rng: random.Random
    ) -> None:
        self.op, self.dtype, self.constants, self.rng = op, dtype, constants, rng
        self.variant, self.aimed, self.target = variant.partition("@")
        self.changed = False
        self.one: str | None = None
        self.kept: set[int] = set()
        """Tensors whose numbers stay in order."""

    def of(self, sample: Sample) -> Sample:
        values = self.op.signature.bind(sample.args, sample.kwargs)
        if "=" in self.variant:
            self._set(values)
        elif "*" in self.variant:
            self._lengthen(values)
        elif self.variant.startswith(THIN):
            self._thin(values)
        else:
            self.one = self._one(values)
            self.kept = {id(t) for t in rising(t for value in values.values() for t in tensors(value))}
            for name, value in values.items():
                if self.one in (None, name):
                    values[name] = self._walk(name, value, values)
        if not self.changed:
            raise NotApplicable("there is nothing of it to change so")
        return packed(self.op, values)

    def _set(self, values: dict[str, Any]) -> None:
        name, _, text = self.variant.partition("=")
        old = values.get(name)
        if text.startswith("="):
            text = text[1:]
            others = options.alone(self.op, {n: v for n, v in values.items() if n != name})
            values |= {n: options.followed(v, int(old or 0), int(text)) for n, v in others.items()}
        values[name] = {"True": True, "False": False}.get(text)
        if isinstance(old, list) and text in options.ORDERS:
            values[name] = options.ordered(old, text, options.rank_of(values))
        elif isinstance(old, str) or text in self.op.signature.names[name].kind.words:
            values[name] = text
        elif text not in ("None", "True", "False"):
            real = isinstance(old, float) or (old is None and "e" in text)
            values[name] = float(text) if real else int(float(text))
        self.changed = True

    def _lengthen(self, values: dict[str, Any]) -> None:
        name, _, count = self.variant.partition("*")
        old = values.get(name)
        if isinstance(old, list) and old:
            values[name] = [old[i] if i < len(old) else old[i % len(old)] * (i % 5 + 1) for i in range(int(count))]
            self.changed = True

    def _thin(self, values: dict[str, Any]) -> None:
        _, name, d = self.variant.split(":")
        old = values.get(name)
        if isinstance(old, Tensor) and old.numel() and old.dim() > int(d or 0):
            values[name] = old.narrow(int(d), 0, 1).clone() if d else old[0].clone()
            self.changed = True

    def _one(self, values: dict[str, Any]) -> str | None:
        """The one argument to change; None: all of them. Sizes of numbers often matter in proportion to each other."""
        if self.aimed or self.variant.partition(":")[0] in ("halves", "integral", "least", "abs"):
            return self.target or None
        fits = [name for name, value in values.items() if any(map(self._takes, tensors(value)))]
        return self.rng.choice(fits) if len(fits) > 1 and self.rng.random() < 0.5 else None

    def _takes(self, t: Tensor) -> bool:
        if t.numel() == 0 or t.layout != torch.strided or (0 in t.stride() and t.numel() > 1):
            return False
        if self.variant in INDEX:
            return is_whole(t) and t.dtype != self.dtype
        if self.variant in MASKS:
            return t.dtype == torch.bool != self.dtype
        kind, _, dtype = self.variant.partition(":")
        if kind in WHOLE:
            return is_whole(t) and t.dtype == (getattr(torch, dtype) if dtype else self.dtype)
        if is_step(self.variant) and is_whole(t):
            return t.dtype == self.dtype
        return t.is_floating_point() or (t.is_complex() and (kind in FIXED or not is_step(self.variant)))

    def _walk(self, name: str, value: Any, values: dict[str, Any]) -> Any:
        if isinstance(value, list):
            return [self._walk(name, v, values) for v in value]
        if not isinstance(value, Tensor) or not self._takes(value):
            return value
        self.changed = True
        new = self._other(name, value, values)
        return in_order(new) if id(value) in self.kept else new

    def _other(self, name: str, value: Tensor, values: dict[str, Any]) -> Tensor:
        if self.variant in INDEX:
            return indices(value, self.variant, name, values, self.rng)
        if self.variant in MASKS:
            return masked(value, self.variant, self.rng)
        kind = self.variant.partition(":")[0]
        if kind in WHOLE:
            stay = [t for t in _others(value, values) if self.one is not None or not self._takes(t)]
            return whole(value, kind, self.rng, stay)
        if is_step(self.variant):
            return take(value, self.variant, self.rng)
        return floats(value, self.variant, self.constants, self.rng)


def floats(t: Tensor, variant: str, constants: Constants, rng: random.Random) -> Tensor:
    """A floating-point tensor of other magnitudes; of a complex one its real and imaginary parts."""
    if t.is_complex():
        parts = torch.view_as_real(t.resolve_conj().clone(memory_format=torch.contiguous_format))
        return torch.view_as_complex(floats(parts, variant, constants, rng).contiguous())
    info, wide = torch.finfo(t.dtype), t.double()
    if variant.startswith("2^"):
        changed = wide * 2.0 ** int(variant[2:])
    elif variant == "shifted":
        digits = -math.log2(info.eps)
        changed = wide + rng.choice((-1, 1)) * 2.0 ** rng.uniform(3, max(4.0, digits / 2))
    elif variant == "halves":
        changed = (wide * 2).round() / 2
    elif variant == "clustered":
        few = wide.flatten()[[rng.randrange(t.numel()) for _ in range(3)]]
        changed = few[_draw(t, rng, 3)]
    elif variant == "spread":
        most = min(24.0, math.log2(info.max) / 4)
        changed = wide * torch.exp2((_uniform(t, rng) * 2 - 1) * most)
    elif variant == "integral":
        changed = (wide * 2.0 ** INTEGRAL[t.dtype.itemsize]).round()
    elif variant in ("late", "last"):
        length = t.shape[-1] if t.dim() else 1
        last = torch.arange(length, device=t.device) >= length - (1 if variant == "last" else max(1, length // 8))
        large = wide.abs().clamp_min(1) if variant == "last" else wide
        changed = torch.where(last, large * 2.0 ** LATE[t.dtype.itemsize], wide)
    else:
        known = [*constants.real, *(float(n) for n in constants.whole if n < info.max)]
        if not known:
            raise NotApplicable("its kernels name no numbers")
        near = torch.tensor([0.5, 1 - 1e-3, 1 - 2 * info.eps, 1.0, 1 + 2 * info.eps, 1 + 1e-3, 2.0], device=t.device)
        table = torch.tensor(known, dtype=torch.float64, device=t.device)[_draw(t, rng, len(known))]
        sign = _draw(t, rng, 2) * 2 - 1
        changed = table * near.double()[_draw(t, rng, 7)] * sign
    return changed.clamp(-info.max, info.max).to(t.dtype)


def masked(t: Tensor, variant: str, rng: random.Random) -> Tensor:
    """A mask that is all of one kind, or has a row without any."""
    if variant != "rowless" or t.dim() < 2 or t.shape[0] < 2:
        return torch.full_like(t, variant == "true")
    d = rng.choice((0, t.dim() - 2))
    return t.clone().index_fill_(d, torch.tensor([rng.randrange(t.shape[d])], device=t.device), False)


def whole(t: Tensor, variant: str, rng: random.Random, others: Sequence[Tensor] = ()) -> Tensor:
    """A tensor of integers over their range."""
    info = torch.iinfo(t.dtype)
    bits = info.bits - (info.min < 0)
    # The smallest divided by -1 is no integer, and ends the process, PyTorch's own division too.
    by_one = any(is_whole(other) and bool((other == -1).any()) for other in others)
    least = info.min + 1 if by_one else info.min
    if variant in ("least", "most"):
        return torch.full_like(t, least if variant == "least" else info.max)
    if variant == "range":
        drawn = [rng.getrandbits(rng.randint(1, bits)) for _ in range(t.numel())]
    elif variant == "ends":
        ends = [least, info.min + 1, 0, 1, info.max - 1, info.max]
        drawn = [rng.choice(ends) for _ in range(t.numel())]
    elif variant == "folded":
        half = info.bits // 2
        drawn = [rng.randrange(2) + (rng.randrange(4) << half) for _ in range(t.numel())]
    else:
        held = [2**k for k in (8, 11, 24, 53) if k < bits] or [1]
        drawn = [rng.choice(held) + rng.randint(-3, 3) for _ in range(t.numel())]
    signs = [rng.choice((-1, 1)) if info.min < 0 and variant not in ("ends", "folded") else 1 for _ in drawn]
    values = [min(max(v * s, info.min), info.max) for v, s in zip(drawn, signs, strict=True)]
    return torch.tensor(values, dtype=torch.int64 if bits < 64 else t.dtype).to(t.device, t.dtype).reshape(t.shape)


def indices(t: Tensor, variant: str, name: str, values: dict[str, Any], rng: random.Random) -> Tensor:
    """A tensor of indices with others in their place. Offsets stay in order, lengths keep their sum."""
    flat: list[int] = t.flatten().tolist()
    least, most = min(flat), max(flat)
    role = role_of(name, t, flat, values)
    if role == "offsets":
        inner = sorted(rng.choice(flat) if variant == "repeated" else rng.randint(least, most) for _ in flat[1:-1])
        new = [flat[0], *inner, flat[-1]][: len(flat)]
        if variant in ("edges", "equal") and len(flat) > 2:
            new = [flat[0], *([rng.choice((least, most))] * (len(flat) - 2)), flat[-1]]
    elif variant == "permuted" or role == "lengths":
        new = rng.sample(flat, len(flat))
    elif variant == "repeated":
        few = rng.sample(sorted({*flat}), min(2, len({*flat})))
        new = [few[i % len(few)] for i in range(len(flat))]  # in turn: never are equal ones side by side
    elif variant == "redrawn":
        new = [rng.randint(least, most) for _ in flat]
    elif variant == "edges":
        new = [rng.choice((least, most)) for _ in flat]
        new[rng.randrange(len(flat))] = most
    elif variant == "equal":
        new = [rng.choice(flat)] * len(flat)
    elif variant == "optional":
        numbers = [v for v in values.values() if isinstance(v, int) and not isinstance(v, bool)]
        if not numbers:
            raise NotApplicable("it has no option that an index could equal")
        option = rng.choice(numbers)
        share = rng.choice((0.4, 0.4, 1.0))
        told = rng.randrange(len(flat))
        new = [option if rng.random() < share or i == told else v for i, v in enumerate(flat)]
    else:
        sizes = sorted({s for other in _others(t, values) for s in other.shape if s > most})
        if not sizes:
            raise NotApplicable("there is no size that an index could reach")
        if variant == "stretched":  # to where no index of the sample points
            new = [v * (sizes[-1] - 1) // max(most, 1) if v > 0 else v for v in flat]
        else:
            size = rng.choice(sizes)
            told = rng.choice([i for i, v in enumerate(flat) if v > least] or [*range(len(flat))])
            new = [v - size if rng.random() < 0.5 or i == told else v for i, v in enumerate(flat)]
    return torch.tensor(new, dtype=t.dtype, device=t.device).reshape(t.shape)


def refit(sample: Sample, op: Op[..., Any], sizes: dict[int, int], made: Sequence[Tensor]) -> Sample:
    """The sample with its integers fitted to other sizes: those that its author wrote out are repeated or cut short
    along a size that changed, and indices stay below one that shrank. The author's tensors could not know."""

    values = op.signature.bind(sample.args, sample.kwargs)
    if sum(is_whole(t) for value in values.values() for t in tensors(value)) > 2:
        return sample  # they tell of each other, and none can change alone

    def fitted(name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [fitted(name, v) for v in value]
        if not isinstance(value, Tensor) or not is_whole(value) or value.numel() == 0:
            return value
        flat: list[int] = value.flatten().tolist()
        offsets = role_of(name, value, flat, values) == "offsets"
        above = [s for s in sorted(sizes) if s > max(flat) or (offsets and s == max(flat))]
        if above and offsets:
            value = value * sizes[above[0]] // above[0]
        elif above and 0 < sizes[above[0]] <= max(flat):
            value = torch.where(value < 0, value, value % sizes[above[0]])
        if not offsets and not any(value is t for t in made):
            for d, old in enumerate(value.shape):
                if old in sizes:
                    if value.numel() // max(old, 1) * sizes[old] > MOST_ELEMENTS:
                        raise NotApplicable("a size that stands twice in one shape would make it too large")
                    value = value.index_select(d, torch.arange(sizes[old], device=value.device) % old)
        return value

    return packed(op, {name: fitted(name, value) for name, value in values.items()})


def packed(op: Op[..., Any], values: dict[str, Any]) -> Sample:
    """Arguments by their names, as a call takes them."""
    known = [p for p in op.signature.parameters if p.name in values]
    args = tuple(values[p.name] for p in known if not p.keyword_only)
    return Sample(args, {p.name: values[p.name] for p in known if p.keyword_only})


NAMED = {
    "offsets": re.compile("offset|ptr|start|begin|bound|edges|cu_|cum|crow|ccol|split", re.IGNORECASE),
    "lengths": re.compile("len|count|sizes|split|repeat", re.IGNORECASE),
}


def role_of(name: str, t: Tensor, flat: Sequence[int], values: dict[str, Any]) -> str:
    """What a tensor of integers looks like: offsets into another tensor, lengths of its parts, or indices. References
    seldom say that offsets must be in order, and kernels rely on it."""
    others = _others(t, values)
    sizes = {s for other in others for s in other.shape}
    apart = len(flat) not in sizes
    # Beside a longer tensor of integers, what rises from 0 within its length tells where its parts begin.
    apart |= any(is_whole(o) and o.dim() == 1 and len(flat) < o.numel() >= flat[-1] for o in others)
    if t.dim() == 1 and list(flat) == sorted(flat) and flat[0] == 0 and (apart or NAMED["offsets"].search(name)):
        return "offsets"
    if t.dim() == 1 and min(flat) >= 0 and sum(flat) in sizes and (apart or NAMED["lengths"].search(name)):
        return "lengths"
    return "indices"


def _others(t: Tensor, values: dict[str, Any]) -> list[Tensor]:
    return [other for value in values.values() for other in tensors(value) if other is not t]


def _generator(rng: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(rng.getrandbits(48))


def _draw(t: Tensor, rng: random.Random, count: int) -> Tensor:
    return torch.randint(count, t.shape, generator=_generator(rng)).to(t.device)


def _uniform(t: Tensor, rng: random.Random) -> Tensor:
    return torch.rand(t.shape, generator=_generator(rng), dtype=torch.float64).to(t.device)


def is_data(run: Callable[[Sample], Any], sample: Sample, dtype: torch.dtype) -> bool:
    """Whether integers are numbers like others: with larger ones the reference gives results of the same shapes. What
    would be asked for memory by them is not asked for much."""

    def larger(value: Any) -> Any:
        if isinstance(value, Tensor) and is_whole(value) and value.dtype == dtype:
            return value + (1 if value.dtype.itemsize == 1 else 1009)
        return [larger(v) for v in value] if isinstance(value, list) else value

    changed = Sample(tuple(map(larger, sample.args)), {k: larger(v) for k, v in sample.kwargs.items()})
    try:
        before, after = run(sample), run(changed)
    except Exception:
        return False
    return [t.shape for t in tensors(before)] == [t.shape for t in tensors(after)]
