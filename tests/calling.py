"""A call of an operator as a function of its tensors, and what comes of it compared with the plain function's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import opwright as ow
from opwright.kit.spec.values import tensors
from tests.losses import Losses

Function = Callable[..., tuple[Tensor, ...]]
Way = Callable[[Function, Function, list[Tensor]], None]
WAYS: dict[str, Way] = {}


def way(name: str) -> Callable[[Way], Way]:
    def add(function: Way) -> Way:
        WAYS[name] = function
        return function

    return add


@dataclass(frozen=True)
class Case:
    """A call as a function of its tensors alone: `over(f)` is f with everything else filled in."""

    sample: ow.Sample

    @property
    def tensors(self) -> list[Tensor]:
        found = [t for value in (*self.sample.args, *self.sample.kwargs.values()) for t in tensors(value)]
        # A tensor that stands for its shape alone shares one element, which transforms could not write to.
        return [torch.ones_like(t.contiguous()) if 0 in t.stride() and t.numel() > 1 else t.detach() for t in found]

    def over(self, function: Callable[..., Any], exact: bool = False) -> Function:
        """The call of `function`; `exact` where it must agree to the bit: no kernel or formula runs in its place."""

        def fill(value: Any, feed: list[Tensor]) -> Any:
            if isinstance(value, Tensor):
                return feed.pop(0)
            return [fill(v, feed) for v in value] if isinstance(value, list) else value

        def call(*given: Tensor) -> tuple[Tensor, ...]:
            feed = list(given)
            args = [fill(v, feed) for v in self.sample.args]
            kwargs = {k: fill(v, feed) for k, v in self.sample.kwargs.items()}
            return tuple(tensors(function(*args, **kwargs)))

        call.exact = exact  # type: ignore[attr-defined]
        return call


def same(
    got: Any, expected: Any, what: str, *, layout: bool = False, like: Function | None = None, order: int = 1
) -> None:
    """The two hold the same tensors. An absent gradient equals one of zeros, as autograd's own sums have it.
    To the bit where `like` is exact."""
    exact = 0.0 if getattr(like, "exact", False) else None
    got, expected = list(got), list(expected)
    assert len(got) == len(expected), f"{what}: {len(got)} results, expected {len(expected)}"
    for i, (g, e) in enumerate(zip(got, expected, strict=True)):
        if g is None or e is None:
            other = e if g is None else g
            assert other is None or not other.any(), f"{what}: result {i} is {g}, expected {e}"
            continue
        assert g.dtype == e.dtype, f"{what}: result {i} is {g.dtype}, expected {e.dtype}"
        assert g.shape == e.shape, f"{what}: result {i} has shape {g.shape}, expected {e.shape}"
        if layout:
            assert strides(g) == strides(e), f"{what}: result {i} has strides {g.stride()}, expected {e.stride()}"
        rtol = atol = exact
        if order > 1 and e.dtype == torch.float32 and e.numel():
            # What cancels in a second derivative keeps the rounding of its largest terms.
            rtol, atol = 1.3e-6, 1e-5 * max(1.0, e.abs().max().item())
        if Losses.now is not None and exact is None and e.is_floating_point():
            if Losses.now.measuring:
                Losses.now.note(what, i, (g - e).detach())
                continue
            # What the plain function has no gradient for was not measured, and loses nothing.
            rtol, atol = 1.3e-6, (atol or 1e-5) + Losses.TIMES * Losses.now.found.get((what, i), 0.0)
        try:
            torch.testing.assert_close(g, e, equal_nan=True, rtol=rtol, atol=atol)
        except AssertionError as differs:
            raise AssertionError(f"{what}: result {i}: {differs}") from None


def strides(t: Tensor) -> list[int] | None:
    """Those that say where an element lies."""
    return [s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1] if t.numel() > 1 else None


def differentiable(given: list[Tensor]) -> list[Tensor]:
    return [t.clone().requires_grad_() if t.is_floating_point() or t.is_complex() else t for t in given]


def watched(given: list[Tensor]) -> list[Tensor]:
    return [t for t in given if t.requires_grad]


def scalar(function: Function) -> Callable[..., Tensor]:
    """The function as one real number that depends on every output unevenly."""

    def loss(*given: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for out in function(*given):
            if out.is_floating_point() or out.is_complex():
                out = torch.view_as_real(out.resolve_conj()) if out.is_complex() else out
                weights = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype, device=out.device).reshape(out.shape)
                total = total.to(out.device) + (out * weights).sum().double() + (out * out).sum().double() / 2
        return total

    return loss


def gradients(function: Function, given: list[Tensor], order: int = 1) -> list[Tensor | None]:
    inputs = differentiable(given)
    loss = scalar(function)(*inputs)
    nothing: list[Tensor | None] = [None] * len(watched(inputs))
    if not nothing or not loss.requires_grad:
        return nothing
    found = torch.autograd.grad(loss, watched(inputs), create_graph=order > 1, allow_unused=True)
    for _ in range(order - 1):
        live = [g for g in found if g is not None and g.requires_grad]
        if not live:
            return nothing
        loss = torch.stack(
            [torch.view_as_real(g.resolve_conj()).square().sum() if g.is_complex() else g.square().sum() for g in live]
        )
        found = torch.autograd.grad(loss.sum(), watched(inputs), create_graph=True, allow_unused=True)
    return list(found)


def real(given: list[Tensor]) -> bool:
    """Whether torch.func's real-valued transforms apply: there is something to differentiate, all of it real."""
    floats = [t for t in given if t.is_floating_point()]
    empty = any(t.numel() == 0 for t in floats)  # torch's own jacfwd fails on empty tensors
    return bool(floats) and not empty and not any(t.is_complex() for t in given)


def over_floats(function: Function, given: list[Tensor]) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The loss as a function of the floating-point tensors alone, and those tensors."""
    floats = [t for t in given if t.is_floating_point()]

    def loss(*values: Tensor) -> Tensor:
        feed = iter(values)
        return scalar(function)(*[next(feed) if t.is_floating_point() else t for t in given])

    return loss, floats


def near(got: Any, expected: Any, what: str, *, rtol: float = 2**-5, share: float = 2**-6, least: float = 0.0) -> None:
    """The two hold the same tensors, as far as bfloat16 goes on the way: an element may be off by a part of itself, and
    by a share of the largest, which counts as `least` at least."""
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        if a is None or b is None:  # an absent gradient equals one of zeros
            other = b if a is None else a
            assert other is None or not other.any(), f"{what}: result {i}"
        else:
            assert a.dtype == b.dtype, f"{what}: result {i} is {a.dtype}, expected {b.dtype}"
            size = max(least, b.double().abs().nan_to_num(0, 0, 0).max().item() if b.numel() else 0.0)
            off = f"{what}: result {i} is off"
            torch.testing.assert_close(a, b, rtol=rtol, atol=share * size, equal_nan=True, msg=off)
