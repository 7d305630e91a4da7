"""What an operator is measured on: what its author declared, else what follows from its samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from opwright.kit.spec.measured import Case, Family, read_family
from opwright.kit.spec.samples import Maker, Sample
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op

USUAL = {
    "cpu": (1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 22),
    "cuda": (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 24, 1 << 26),
}
USUAL_AT = {"cpu": 1 << 20, "cuda": 1 << 24}


def families(op: Op[..., Any], device: str = "cpu") -> list[Family]:
    """What an operator is measured on: what its author declared, else what follows from its samples."""
    return [family.on(device) for family in op.spec.families or _from_samples(op)]


def cases(op: Op[..., Any], device: str = "cpu") -> list[Case]:
    """All cases of an operator: those that stand for their families, then the rest, family by family."""
    each = [f.cases() for f in families(op, device)]
    return [c[0] for c in each] + [case for c in each for case in c[1:]]


def _from_samples(op: Op[..., Any]) -> list[Family]:
    """Elementwise operators grow by any size; others are measured on their largest sample."""
    if any(p.mutated for p in op.signature.parameters):
        return []
    drawn = op.draw_samples(Maker())
    for index, sample in enumerate(drawn):
        given = tensors([*sample.args, *sample.kwargs.values()])
        alike = bool(given) and all(t.shape == given[0].shape and t.dtype == torch.float32 for t in given)
        if alike and given[0].numel() and _keeps_shape(op, sample):
            return [read_family(op.name, (), "elementwise", _grown(op, index), USUAL, USUAL_AT)]
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
