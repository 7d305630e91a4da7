"""Sizes that are made of others: where a kernel's patterns say `weight[3*h, h]`, 3·h changes with h."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from opwright.kit.op import Op
from opwright.kit.spec.samples import Sample


class Tie(NamedTuple):
    """A declared size that is `factor` times the sum of others."""

    size: int
    factor: int
    parts: tuple[int, ...]


def ties(op: Op[..., Any], sample: Sample) -> list[Tie]:
    """What the patterns of an operator's kernels say of the sizes of a sample. A size that a name stands for as well
    is free."""
    values = op.signature.bind(sample.args, sample.kwargs)
    found: dict[int, Tie] = {}
    free: set[int] = set()
    for kernel in op.kernels:
        bound: dict[str, int] = {}
        made: list[tuple[int, int, tuple[str, ...]]] = []
        for name, pattern in kernel.domain.patterns.items():
            value = values.get(name)
            aligned = pattern.align(tuple(value.shape)) if isinstance(value, Tensor) else None
            for dimension, size in aligned or ():
                if len(dimension.names) == 1 and dimension.factor == 1:
                    bound.setdefault(dimension.names[0], size)
                elif dimension.names:
                    made.append((size, dimension.factor, dimension.names))
        free |= {*bound.values()}
        for size, factor, names in made:
            if all(name in bound for name in names):
                found[size] = Tie(size, factor, tuple(bound[name] for name in names))
    return [tie for tie in found.values() if tie.size not in free]


def tied(chosen: dict[int, int], all_ties: Sequence[Tie]) -> dict[int, int]:
    """Sizes in place of declared ones, with those that are made of others."""
    return chosen | {t.size: t.factor * sum(chosen.get(part, part) for part in t.parts) for t in all_ties}
