"""Elementwise arithmetic that keeps a scaled identity one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opwright.tensors.scaled_identity.type import ScaledIdentity, cell, same, scalar


@ScaledIdentity.implements(torch.add)
def add(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    if not same(input, other):
        return NotImplemented
    return input.like(torch.add(cell(input), cell(other), alpha=alpha))


@ScaledIdentity.implements(torch.sub)
def sub(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    if not same(input, other):
        return NotImplemented
    return input.like(torch.sub(cell(input), cell(other), alpha=alpha))


@ScaledIdentity.implements(torch.mul)
def mul(input: Any, other: Any) -> Any:
    if same(input, other):
        return input.like(cell(input) * cell(other))
    if not isinstance(input, ScaledIdentity):
        input, other = other, input
    factor = scalar(other)
    return NotImplemented if factor is None else input.like(cell(input) * factor)


@ScaledIdentity.implements(torch.div)
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    divisor = scalar(other)
    if divisor is None or not isinstance(input, ScaledIdentity) or (not isinstance(divisor, Tensor) and divisor == 0):
        return NotImplemented
    return input.like(torch.div(cell(input), divisor, rounding_mode=rounding_mode))


@ScaledIdentity.implements(torch.pow)
def power(input: Any, exponent: Any) -> Any:
    # Off the diagonal 0**p is 0 for p > 0 alone.
    if not isinstance(exponent, (int, float)) or exponent <= 0:
        return NotImplemented
    return input.like(cell(input) ** exponent)


@ScaledIdentity.implements(torch.neg)
def neg(input: ScaledIdentity) -> ScaledIdentity:
    return input.like(-cell(input))


@ScaledIdentity.implements(torch.positive)
def positive(input: ScaledIdentity) -> ScaledIdentity:
    return input.like(+cell(input))


@ScaledIdentity.implements(torch.abs)
def absolute(input: ScaledIdentity) -> ScaledIdentity:
    return input.like(cell(input).abs())


@ScaledIdentity.implements(torch.conj)
def conj(input: ScaledIdentity) -> ScaledIdentity:
    return input.like(cell(input).conj())


@ScaledIdentity.implements(torch.equal)
def equal(input: Any, other: Any) -> Any:
    if not (isinstance(input, ScaledIdentity) and isinstance(other, ScaledIdentity)):
        return NotImplemented
    return input.n == other.n and torch.equal(input.value, other.value)


@ScaledIdentity.implements(torch.allclose)
def allclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    if not same(input, other):
        return NotImplemented
    return torch.allclose(cell(input), cell(other), rtol, atol, equal_nan)


@ScaledIdentity.implements(torch.clone)
def clone(input: ScaledIdentity, *, memory_format: Any = None) -> ScaledIdentity:
    return input.like(input.value.clone())


@ScaledIdentity.implements(torch.detach)
def detach(input: ScaledIdentity) -> ScaledIdentity:
    return input.like(input.value.detach())


@ScaledIdentity.implements(torch.Tensor.contiguous)
def contiguous(input: ScaledIdentity, memory_format: Any = None) -> ScaledIdentity:
    return input


@ScaledIdentity.implements(torch.Tensor.to)
def to(input: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(input, ScaledIdentity):
        return input.to(args[0].value, *args[1:], **kwargs)
    if args and isinstance(args[0], ScaledIdentity):
        args = (args[0].value, *args[1:])
    moved: Tensor = input.value.to(*args, **kwargs)
    return input if moved is input.value else input.like(moved)


def _converts(name: str) -> None:
    method = getattr(torch.Tensor, name)

    @ScaledIdentity.implements(method)
    def convert(input: ScaledIdentity, *args: Any, **kwargs: Any) -> ScaledIdentity:
        moved: Tensor = method(input.value, *args, **kwargs)
        return input if moved is input.value else input.like(moved)


for _name in ("bfloat16", "cdouble", "cfloat", "cpu", "cuda", "double", "float", "half", "int", "long"):
    _converts(_name)
