"""Where a kernel may run, and what it costs: declared by its author, asked by the router."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from opwright.kit.spec import words
from opwright.kit.spec.require import broadcastable, spell
from opwright.kit.spec.sizes import Pattern, misfit, parse
from opwright.kit.spec.values import tensors

Layout = Literal["any", "contiguous", "channels_last"]
HALVES = (torch.float16, torch.bfloat16)
FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""The floating-point dtypes that kernels usually take: `Domain(dtypes=FLOATING)`."""


@dataclass(frozen=True)
class Cost:
    """What an operator must do at least: bytes to and from memory, floating-point operations.

    >>> Cost(bytes=12, flops=3).bytes
    12
    """

    bytes: int
    flops: int


@dataclass(frozen=True)
class Domain:
    """The calls a kernel takes. Outside it the reference runs.

    `sizes` writes each tensor's shape as a pattern; a name stands for the same size wherever it appears,
    `...` for any leading dimensions, `k%8` for a multiple of eight, `3*k` for three times k, `k+n` for a sum.

    >>> domain = Domain(dtypes=(torch.float32,), sizes="x[..., k] weight[n, k]")
    >>> domain.refuses({"x": torch.ones(5, 3), "weight": torch.ones(2, 3)}) is None
    True
    >>> domain.refuses({"x": torch.ones(5, 3), "weight": torch.ones(2, 4)})
    'weight has shape (2, 4), which does not fit weight[n, k] with k = 3'
    >>> domain.refuses({"x": torch.ones(5, 3).double(), "weight": torch.ones(2, 3)})
    'x is float64, the kernel takes float32'
    """

    dtypes: tuple[torch.dtype, ...] = ()
    """Allowed for every tensor; empty: any. Tensors of one call share one dtype unless `mixed`."""
    mixed: bool = False
    wide: tuple[str, ...] = ()
    """Tensors that may be float32 where the others are half or bfloat16."""
    types: Mapping[str, tuple[torch.dtype, ...]] = field(default_factory=dict)
    """Tensors with dtypes of their own, such as integers that count."""
    ranks: Mapping[str, int | range] = field(default_factory=dict)
    layout: Layout = "any"
    broadcast: bool = False
    """Whether it takes only tensors that broadcast together."""
    sizes: str = ""
    patterns: Mapping[str, Pattern] = field(init=False, repr=False, compare=False)
    """`sizes`, read."""

    def __post_init__(self) -> None:
        for word, kind in (("sizes", str), ("types", Mapping), ("ranks", Mapping)):
            if not isinstance(getattr(self, word), kind):
                wanted = "a string such as 'x[..., k]'" if kind is str else "a dict by the names of tensors"
                raise TypeError(f"Domain: {word} must be {wanted}, got {getattr(self, word)!r}")
        object.__setattr__(self, "dtypes", _read_dtypes("dtypes", self.dtypes))
        own = {name: _read_dtypes(f"the types of {name}", dtypes) for name, dtypes in self.types.items()}
        object.__setattr__(self, "types", own)
        object.__setattr__(self, "wide", words.several("Domain", "wide", self.wide, "names"))
        words.one_of("Domain", "layout", self.layout, get_args(Layout))
        for word in ("mixed", "broadcast"):
            words.flag("Domain", word, getattr(self, word))
        for name, ranks in self.ranks.items():
            if not _is_rank(ranks):
                raise TypeError(
                    f"Domain: the ranks of {name} must be a number or a range without a step, got {ranks!r}"
                )
        object.__setattr__(self, "patterns", parse(self.sizes))

    @property
    def says(self) -> str:
        """What it holds, in words.

        >>> Domain(dtypes=(torch.float32,), sizes="x[..., k] weight[n, k]", layout="contiguous").says
        'contiguous tensors of float32, of sizes x[..., k] weight[n, k]'
        """
        layout = "" if self.layout == "any" else f"{self.layout} "
        one = "" if self.mixed or len(self.dtypes) == 1 else "one of " if self.dtypes else "one dtype, whichever"
        parts = [f"{layout}tensors of {one}{_list(self.dtypes) if self.dtypes else '' if one else 'any dtype'}"]
        parts += [f"{name} of {_list(dtypes)}" for name, dtypes in self.types.items()]
        parts += [f"{', '.join(self.wide)} also of float32"] if self.wide else []
        parts += [f"{name} of {_dimensions(allowed)}" for name, allowed in self.ranks.items()]
        parts += ["that broadcast"] if self.broadcast else []
        parts += [f"of sizes {self.sizes}"] if self.sizes else []
        return ", ".join(parts)

    def refuses(self, arguments: Mapping[str, Any]) -> str | None:
        """Why the kernel does not take this call; None when it does."""
        named = [(name, t) for name, value in arguments.items() for t in tensors(value)]
        plain = self.first_plain(arguments)
        for name, t in named:
            if name in self.types:
                if t.dtype not in self.types[name]:
                    return f"{name} is {spell(t.dtype)}, the kernel takes {_list(self.types[name])}"
            elif self.dtypes and t.dtype not in self.dtypes:
                return f"{name} is {spell(t.dtype)}, the kernel takes {_list(self.dtypes)}"
            elif not self.mixed and plain is not None and not self._shares(name, t.dtype, plain[1].dtype):
                return f"{name} is {spell(t.dtype)} and {plain[0]} is {spell(plain[1].dtype)}"
            if t.device != named[0][1].device:
                return f"{name} is on {t.device} and {named[0][0]} on {named[0][1].device}"
            if t.layout != torch.strided:
                return f"{name} is {spell(t.layout)}, the kernel takes strided tensors"
            if not _has_layout(t, self.layout):
                return f"{name} is not {self.layout}"
            allowed = self.ranks.get(name)
            if allowed is not None and t.dim() not in (allowed if isinstance(allowed, range) else (allowed,)):
                return f"{name} has {t.dim()} dimensions, the kernel takes {_ranks(allowed)}"
        if self.broadcast and not broadcastable(*(t for _, t in named)):
            return "the tensors do not broadcast together"
        return misfit(self.patterns, arguments)

    def first_plain(self, arguments: Mapping[str, Any]) -> tuple[str, Tensor] | None:
        """The first tensor whose dtype the others share, and its name."""
        plain = {n: tensors(v) for n, v in arguments.items() if n not in self.wide and n not in self.types}
        return next(((n, found[0]) for n, found in plain.items() if found), None)

    def refuse_names(self, op: str, parameters: Mapping[str, Any]) -> None:
        """Raise where it speaks of what is no tensor of the operator: the restriction would hold for nothing."""
        known = [name for name, p in parameters.items() if p.kind.is_tensor]
        for word in ("sizes", "ranks", "wide", "types"):
            for name in self.patterns if word == "sizes" else getattr(self, word):
                if name not in known:
                    raise TypeError(
                        f"{op}: {word} of the domain names {name!r}; the tensors of {op} are {', '.join(known)}"
                    )

    def _shares(self, name: str, dtype: torch.dtype, others: torch.dtype) -> bool:
        return dtype == others or (name in self.wide and dtype == torch.float32 and others in HALVES)


def _ranks(allowed: int | range) -> str:
    return f"{allowed.start} to {allowed.stop - 1}" if isinstance(allowed, range) else str(allowed)


def _dimensions(allowed: int | range) -> str:
    return f"{_ranks(allowed)} dimension{'' if _ranks(allowed) == '1' else 's'}"


def _has_layout(t: Tensor, layout: Layout) -> bool:
    if layout == "contiguous":
        return t.is_contiguous()
    if layout == "channels_last":
        return t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last)
    return layout == "any"  # a kernel must not run on a word that nobody knows


def _read_dtypes(word: str, given: Any) -> tuple[torch.dtype, ...]:
    if isinstance(given, torch.dtype):
        raise TypeError(f"Domain: {word} are several; write ({given},)")
    for dtype in (given,) if isinstance(given, str) or not isinstance(given, Iterable) else given:
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"Domain: a dtype must be one of torch's, such as torch.float32, got {dtype!r} in {word}")
    return tuple(given)


def _is_rank(given: Any) -> bool:
    if isinstance(given, range):
        return given.step == 1 and given.start >= 0
    return isinstance(given, int) and not isinstance(given, bool) and given >= 0


def _list(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(spell(d) for d in dtypes)
