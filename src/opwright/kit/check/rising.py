"""Numbers that rise, in a tensor beside others whose do not: the edges of bins, the knots of a spline. A reference that
searches them by halves relies on their order and says nothing of it, so they keep it whatever else they become."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors
from opwright.kit.truth.oracle import rebuilt


def rising(given: Iterable[Tensor]) -> list[Tensor]:
    """Those of some tensors that must stay in order; none where all are, as somebody writes numbers down."""
    floats = [t for t in given if t.is_floating_point() and t.numel() > 1]
    found = [t for t in floats if t.dim() == 1 and bool((t[1:] >= t[:-1]).all()) and bool(t[0] < t[-1])]
    return found if len(found) < len(floats) else []


def in_order(t: Tensor) -> Tensor:
    """The tensor with its numbers in order, in the same memory."""
    return t if 0 in t.stride() else t.copy_(t.sort().values)


def changed(sample: Sample, change: Callable[[Tensor], Tensor]) -> Sample:
    """The sample with every tensor changed, and those in order that were; NaN has no place in an order."""
    given = [t for v in (*sample.args, *sample.kwargs.values()) for t in tensors(v)]
    kept = {id(t) for t in rising(given)}

    def each(t: Tensor) -> Tensor:
        new = change(t)
        if id(t) not in kept:
            return new
        return t if bool(new.isnan().any()) else in_order(new)

    return rebuilt(sample, each)
