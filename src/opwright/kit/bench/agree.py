"""Whether a variant computes what the reference says, before anybody times it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from opwright.kit.spec.require import spell
from opwright.kit.spec.values import has_gradient, tensors

ROOM = 8.0
"""How many times the eager reference's own error a variant may make."""
FEW = 16.0
"""Units in the last place that anybody may be off by."""


@dataclass(frozen=True)
class Named:
    """A result by its name: an output, a gradient, or an argument that was written."""

    name: str
    value: Tensor
    is_gradient: bool = False


@dataclass(frozen=True)
class Agreement:
    """How far a variant is from the float64 reference, and whether that is too far."""

    error: float
    """The largest error, as a share of the allowed one."""
    wrong: str = ""
    """What is wrong, and by how much; empty when nothing is."""


class Oracle:
    """The float64 reference's results for one case, and what the eager reference loses on them."""

    def __init__(self, exact: list[Named], eager: list[Named], coarse: list[Named] | None = None) -> None:
        self.exact, self.eager = exact, eager
        self.allowed = []
        for i, (e, r) in enumerate(zip(exact, eager, strict=True)):
            unit = _unit(r.value.dtype)
            allowed = max(ROOM * _loss(r.value, e.value), FEW * unit)
            if coarse is not None:  # in float64 it loses nothing against itself; float32 tells what it would
                scaled = _loss(coarse[i].value, e.value) / torch.finfo(torch.float32).eps * unit
                allowed = max(allowed, ROOM * scaled)
            self.allowed.append(allowed)

    def judge(self, got: list[Named], *, outputs_alone: bool = False) -> Agreement:
        """Compare a variant's results with the exact ones; its outputs alone where its arguments are others, which
        have other gradients."""
        exact = [e for e in self.exact if not (outputs_alone and e.is_gradient)]
        if [g.name for g in got] != [e.name for e in exact]:
            names = ", ".join(g.name for g in got)
            return Agreement(float("inf"), f"it gives {names}; the reference {', '.join(e.name for e in exact)}")
        worst = 0.0
        for e, r, g, allowed in zip(exact, self.eager, got, self.allowed, strict=False):
            if g.value.shape != e.value.shape:
                return Agreement(float("inf"), f"{e.name} has shape {spell(g.value.shape)}, not {spell(e.value.shape)}")
            if g.value.dtype != r.value.dtype:
                return Agreement(float("inf"), f"{e.name} is {spell(g.value.dtype)}, not {spell(r.value.dtype)}")
            loss = _loss(g.value, e.value)
            if not loss <= allowed:
                return Agreement(float("inf"), f"{e.name} is off by {loss:.1e}, allowed {allowed:.1e}")
            worst = max(worst, loss / allowed if allowed else 0.0)
        return Agreement(worst)


def _unit(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def _loss(got: Tensor, exact: Tensor) -> float:
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


def widen(value: Any, dtype: torch.dtype = torch.float64) -> Any:
    """An argument with its floating-point tensors in float64 (or `dtype`), of the same values.

    >>> widen([torch.ones(2), 3])[0].dtype
    torch.float64
    """
    if isinstance(value, Tensor):
        if value.is_complex():
            return value.detach().to(torch.complex128 if dtype == torch.float64 else torch.complex64)
        return value.detach().to(dtype) if value.is_floating_point() else value
    return type(value)(widen(v, dtype) for v in value) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class Given:
    """The arguments of a call, and what the operator says about them by name."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    bind: Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]
    followed: tuple[str, ...] = ()
    """Arguments that gradients are taken of."""
    written: tuple[str, ...] = ()

    def change(self, change: Callable[[Any], Any]) -> Given:
        """With other values."""
        kwargs = {k: change(v) for k, v in self.kwargs.items()}
        return replace(self, args=tuple(map(change, self.args)), kwargs=kwargs)

    def fresh(self, grad: bool = False) -> Given:
        """The same memory and strides under new tensors, which require a gradient where one is taken; what is
        written to is a copy."""
        copied = {id(t) for name in self.written for t in tensors(self.bind(self.args, self.kwargs).get(name))}

        def renew(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.detach().clone() if id(value) in copied else value.detach()
            return type(value)(map(renew, value)) if isinstance(value, (list, tuple)) else value

        found = self.change(renew)
        for _, t in found.leaves() if grad else ():
            t.requires_grad_()
        return found

    def leaves(self) -> list[tuple[str, Tensor]]:
        """The tensors that gradients are taken of, by name."""
        values = self.bind(self.args, self.kwargs)
        found = []
        for name in self.followed:
            each = [t for t in tensors(values.get(name)) if has_gradient(t)]
            found += [(name + (f"[{i}]" if len(each) > 1 else ""), t) for i, t in enumerate(each)]
        return found

    def results(self, function: Callable[..., Any], incoming: list[Tensor] | None) -> list[Named]:
        """What a function gives: outputs, written arguments and, with `incoming` gradients of its outputs, the
        gradients that go out."""
        given = self.fresh(grad=incoming is not None)
        out = tensors(function(*given.args, **given.kwargs))
        found = [Named("the result" if len(out) == 1 else f"result {i}", t) for i, t in enumerate(out)]
        values = given.bind(given.args, given.kwargs)
        found += [Named(name, t) for name in self.written for t in tensors(values.get(name))]
        if incoming is not None:
            leaves = given.leaves()
            sources = [t for t in out if t.requires_grad]
            if len(sources) != len(incoming):
                raise ValueError(f"{len(sources)} of its outputs carry a gradient, the reference's {len(incoming)}")
            into = [g.to(t.dtype) for g, t in zip(incoming, sources, strict=True)]
            grads = torch.autograd.grad(sources, [t for _, t in leaves], into, allow_unused=True)
            for (name, t), g in zip(leaves, grads, strict=True):
                found.append(Named(f"the gradient of {name}", torch.zeros_like(t) if g is None else g, True))
        return found
