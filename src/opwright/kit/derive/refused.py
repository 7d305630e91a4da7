"""A derivative that does not exist: whoever asks for it, in whatever way, is told why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.spec.values import has_gradient


def refuse_derivative(why: str, value: Any, given: Sequence[Tensor]) -> Any:
    """A value that must not look like a constant to whoever differentiates it, though it has no history. It was made of
    the given tensors, and the node that raises leads to them: autograd runs no other when it is asked for the gradients
    of some inputs alone."""
    if isinstance(value, (list, tuple)):
        return [refuse_derivative(why, v, given) for v in value]
    if value is None or value.requires_grad or not has_gradient(value):
        return value
    return _Refused.apply(why, value, *(t for t in given if has_gradient(t)))  # type: ignore[no-untyped-call]


def lead(given: Sequence[Tensor]) -> list[Tensor]:
    """Empty tensors that autograd follows back to the given ones, and that keep none of their memory."""
    with torch.enable_grad():
        return [_Lead.apply(t) for t in given if t.requires_grad]  # type: ignore[no-untyped-call]


class _Lead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        return t.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise AssertionError("what leads to a tensor has no gradient of its own")


class _Refused(torch.autograd.Function):
    """Gives a value through, and raises for its derivative, backward and forward."""

    @staticmethod
    def forward(why: str, value: Tensor, *given: Tensor) -> Tensor:
        if torch.is_inference(value) or private.transforms():
            return value.view_as(value)
        with private.BelowADInplaceOrView():  # no view, so that it may be written to as any result
            alias: Tensor = torch.ops.aten.alias.default(value)
            return alias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.why = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(ctx.why)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError(ctx.why)

    @staticmethod
    def vmap(info: Any, in_dims: Any, why: str, value: Tensor, *given: Tensor) -> Any:
        return _Refused.apply(why, value, *given), in_dims[1]  # type: ignore[no-untyped-call]
