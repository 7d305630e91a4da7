"""What an operator is measured on, and against whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from opwright.kit.samples import Maker, Sample, read_sample
from opwright.kit.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op

Kind = Literal["reference", "compiled", "operator", "variant", "rival"]
USUAL = (1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 22)


@dataclass(frozen=True)
class Family:
    """Calls of one shape that grow with one size."""

    name: str
    draw: Callable[..., Any]
    sizes: tuple[int, ...] = ()
    at: int | None = None
    """The size that stands for the family; None where there is but one call."""

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


@dataclass
class Declared:
    """What an operator's author has said about measuring it."""

    families: list[Family] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)

    def add_family(self, op: str, name: str, draw: Any, sizes: Sequence[int], at: int | None) -> None:
        """Note a family, under a name of its own."""
        if any(f.name == name for f in self.families):
            raise ValueError(f"{op}: it has bench cases named {name!r} already; give these another name")
        if any(not isinstance(n, int) or n < 1 for n in sizes):
            raise ValueError(f"{op}: the sizes of bench cases are positive whole numbers, got {list(sizes)}")
        if at is None and sizes:
            at = sorted(sizes)[-1]
        if at is not None and at not in sizes:
            raise ValueError(f"{op}: at must be one of the sizes {list(sizes)}, got {at}")
        self.families.append(Family(name, draw, tuple(sorted(set(sizes))), at))

    def add_variant(self, op: str, variant: Variant) -> None:
        """Note a rival or a variant, under a name of its own."""
        if variant.name in (v.name for v in self.variants) or variant.name in ("eager", "compiled", "opwright"):
            raise ValueError(f"{op}: there is a {variant.name!r} to measure already; give this one another name")
        self.variants.append(variant)


def families(op: Op[..., Any]) -> list[Family]:
    """What an operator is measured on: what its author declared, else what follows from its samples."""
    return op.declared.families or _from_samples(op)


def _from_samples(op: Op[..., Any]) -> list[Family]:
    """Elementwise operators grow by any size; others are measured on their largest sample."""
    if any(p.mutated for p in op.signature.parameters):
        return []
    drawn = op.draw_samples(Maker())
    for index, sample in enumerate(drawn):
        given = tensors([*sample.args, *sample.kwargs.values()])
        alike = bool(given) and all(t.shape == given[0].shape and t.dtype == torch.float32 for t in given)
        if alike and given[0].numel() and _keeps_shape(op, sample):
            return [Family("elementwise", _grown(op, index), USUAL, 1 << 20)]
    if not drawn:
        return []
    counts = [sum(t.numel() for t in tensors([*s.args, *s.kwargs.values()])) for s in drawn]
    index = counts.index(max(counts))

    def largest(make: Maker) -> Sample:
        return op.draw_samples(make)[index]

    return [Family(f"sample {index}", largest)]


def _keeps_shape(op: Op[..., Any], sample: Sample) -> bool:
    try:
        grown = _with_shape(sample, lambda: torch.zeros(37))
        out = tensors(op.reference(*grown.args, **grown.kwargs))
    except Exception:  # it is not made for one dimension
        return False
    return bool(out) and all(t.shape == (37,) for t in out)


def _grown(op: Op[..., Any], index: int) -> Callable[..., Sample]:
    def draw(make: Maker, n: int) -> Sample:
        return _with_shape(op.draw_samples(make)[index], lambda: make(n))

    return draw


def _with_shape(sample: Sample, make: Callable[[], torch.Tensor]) -> Sample:
    def renew(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return make()
        return [renew(v) for v in value] if isinstance(value, (list, tuple)) else value

    return Sample(tuple(map(renew, sample.args)), {name: renew(v) for name, v in sample.kwargs.items()})


def spell_size(n: int) -> str:
    """A size as a person says it.

    >>> spell_size(1 << 20), spell_size(1000), spell_size(64)
    ('2^20', '1000', '64')
    """
    return f"2^{n.bit_length() - 1}" if n >= 1024 and n & (n - 1) == 0 else str(n)
