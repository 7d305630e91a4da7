"""Where a kernel may run, and what it costs: declared by its author, asked by the router."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

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
        if isinstance(self.dtypes, torch.dtype):
            raise TypeError(f"Domain: dtypes are several; write dtypes=({self.dtypes},)")
        for dtype in (*self.dtypes, *(d for own in self.types.values() for d in own)):
            if not isinstance(dtype, torch.dtype):
                raise TypeError(f"Domain: a dtype must be one of torch's, such as torch.float32, got {dtype!r}")
        for name, ranks in self.ranks.items():
            if not isinstance(ranks, (int, range)) or (isinstance(ranks, range) and ranks.step != 1):
                raise TypeError(
                    f"Domain: the ranks of {name} must be a number or a range without a step, got {ranks!r}"
                )
        object.__setattr__(self, "patterns", parse(self.sizes))

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
                takes = f"{allowed.start} to {allowed.stop - 1}" if isinstance(allowed, range) else allowed
                return f"{name} has {t.dim()} dimensions, the kernel takes {takes}"
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


def _has_layout(t: Tensor, layout: Layout) -> bool:
    if layout == "contiguous":
        return t.is_contiguous()
    if layout == "channels_last":
        return t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last)
    return True


def _list(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(spell(d) for d in dtypes)
