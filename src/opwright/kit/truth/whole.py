"""Whether tensors are right as a whole, which one run of the reference in float64 and one in the dtype at hand tell."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from opwright.kit.truth import tolerance
from opwright.kit.truth.oracle import Finding, comparable


@dataclass(frozen=True)
class Named:
    """A result by its name: an output, a gradient, or an argument that was written."""

    name: str
    value: Tensor
    is_gradient: bool = False


class Whole:
    """The reference's results for one call, and how far off each may be.

    `exact`: in float64; `eager`: in the dtype at hand; `coarse`: in float32, where that is float64, which loses nothing
    against itself.
    """

    def __init__(self, exact: list[Named], eager: list[Named], coarse: list[Named] | None = None) -> None:
        self.exact, self.eager = exact, eager
        self.allowed = []
        for i, (e, r) in enumerate(zip(exact, eager, strict=True)):
            unit = tolerance.eps(r.value.dtype)
            lost = loss(r.value, e.value)
            if coarse is not None:
                lost = max(lost, loss(coarse[i].value, e.value) / tolerance.eps(torch.float32) * unit)
            self.allowed.append(max(tolerance.LOSS * lost, tolerance.FEW * unit))

    def judge(self, got: list[Named], *, outputs_alone: bool = False) -> float:
        """The largest error, as a share of the allowed one; raise Finding where it is larger. The outputs alone where
        the arguments are others, which have other gradients."""
        exact = [e for e in self.exact if not (outputs_alone and e.is_gradient)]
        if [g.name for g in got] != [e.name for e in exact]:
            names = ", ".join(g.name for g in got)
            raise Finding(f"it gives {names}; the reference {', '.join(e.name for e in exact)}")
        worst = 0.0
        for e, r, g, allowed in zip(exact, self.eager, got, self.allowed, strict=False):
            comparable(g.value, e.value.shape, r.value.dtype, e.name)
            lost = loss(g.value, e.value)
            if not lost <= allowed:
                raise Finding(f"{e.name} is off by {lost:.1e}, allowed {allowed:.1e}")
            worst = max(worst, lost / allowed if allowed else 0.0)
        return worst


def loss(got: Tensor, exact: Tensor) -> float:
    """The largest error, relative to the element and to the tensor's mean together: an element near zero that comes
    from a long sum is not asked for more digits than the sum has."""
    if not exact.numel():
        return 0.0
    wide = torch.complex128 if exact.is_complex() or got.is_complex() else torch.float64
    got, exact = (t.detach().to_dense().to(wide) for t in (got, exact))
    finite = torch.isfinite(exact)
    if not bool((torch.isfinite(got) == finite).all()):
        return float("inf")
    if not bool(finite.all()):
        rest = ~finite
        if not bool(((got[rest] == exact[rest]) | (got[rest].isnan() & exact[rest].isnan())).all()):
            return float("inf")
        got, exact = got[finite], exact[finite]
        if not exact.numel():
            return 0.0
    size = exact.abs()
    error = (got - exact).abs() / (size + size.mean()).clamp_min(torch.finfo(torch.float64).tiny)
    return float(error.max())
