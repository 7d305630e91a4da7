"""What an operator's author says about measuring it: calls, and who else computes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from opwright.kit.spec import words
from opwright.kit.spec.samples import Maker, Sample, read_sample

if TYPE_CHECKING:
    from opwright.kit.op import Op

Kind = Literal["reference", "compiled", "operator", "variant", "rival"]
Sizes = Sequence[int] | Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Family:
    """Calls of one shape that grow with one size."""

    name: str
    draw: Callable[..., Any]
    sizes: tuple[int, ...] = ()
    at: int | None = None
    """The size that stands for the family; None where there is but one call."""
    elsewhere: tuple[tuple[str, tuple[int, ...], int], ...] = ()
    """Kinds of device with sizes of their own."""
    compiled: bool = True
    """Whether the reference is measured under torch.compile too."""

    def on(self, device: str) -> Family:
        """The family as it is measured on a device."""
        for kind, sizes, at in self.elsewhere:
            if device.partition(":")[0] == kind:
                return replace(self, sizes=sizes, at=at, elsewhere=())
        return replace(self, elsewhere=())

    def cases(self) -> list[Case]:
        """Its calls, the one that stands for it first."""
        if self.at is None:
            return [Case(self, None)]
        return [Case(self, n) for n in (self.at, *(n for n in self.sizes if n != self.at))]


@dataclass(frozen=True)
class Case:
    """One call to measure."""

    family: Family
    size: int | None

    @property
    def name(self) -> str:
        """How rows call it."""
        return self.family.name if self.size is None else f"{self.family.name} {spell_size(self.size)}"

    def arguments(self, op: Op[..., Any], make: Maker) -> Sample:
        """Its arguments, drawn afresh."""
        drawn = self.family.draw(make) if self.size is None else self.family.draw(make, self.size)
        return drawn if isinstance(drawn, Sample) else read_sample(op.name, drawn)


@dataclass(frozen=True)
class Variant:
    """A way to compute a case."""

    name: str
    kind: Kind
    function: Callable[..., Any]
    prepare: Callable[..., Any] | None = None
    """From the operator's arguments to its own, outside the timing."""
    same: bool = True
    """Whether it computes what the operator does; else it is there for scale, and nothing is compared."""


def read_family(
    op: str, known: Sequence[Family], name: str, draw: Any, sizes: Sizes, at: int | Mapping[str, int] | None,
    compiled: bool = True,
) -> Family:  # fmt: skip
    """A family as its author declares it, under a name of its own."""
    if any(f.name == name for f in known):
        raise ValueError(f"{op}: it has bench cases named {name!r} already; give these another name")
    each = dict(sizes) if isinstance(sizes, Mapping) else {"cpu": sizes}
    read = {}
    for kind, given in each.items():
        place = at.get(kind) if isinstance(at, Mapping) else at
        read[kind] = _read_sizes(op, given, place)
    first = read.get("cpu") or next(iter(read.values()))
    others = tuple((kind, sizes, at) for kind, (sizes, at) in read.items() if at is not None and kind != "cpu")
    return Family(name, draw, *first, others, compiled)


def refuse_taken(op: str, known: Sequence[Variant], name: str) -> None:
    """Raise unless a rival or a variant has a name of its own."""
    if name in (v.name for v in known) or name in ("eager", "compiled", "opwright"):
        raise ValueError(f"{op}: there is a {name!r} to measure already; give this one another name")


def _read_sizes(op: str, sizes: Sequence[int], at: int | None) -> tuple[tuple[int, ...], int | None]:
    if any(not isinstance(n, int) or n < 1 for n in words.several(op, "sizes", sizes, "whole numbers")):
        raise ValueError(f"{op}: the sizes of bench cases are positive whole numbers, got {list(sizes)}")
    if at is None and sizes:
        at = max(sizes)
    if at is not None and at not in sizes:
        raise ValueError(f"{op}: at must be one of the sizes {list(sizes)}, got {at}")
    return tuple(sorted(set(sizes))), at


def spell_size(n: int) -> str:
    """A size as a person says it.

    >>> spell_size(1 << 20), spell_size(1000), spell_size(64)
    ('2^20', '1000', '64')
    """
    return f"2^{n.bit_length() - 1}" if n >= 1024 and n & (n - 1) == 0 else str(n)
