"""Sums, means and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opwright.tensors.scaled_identity.type import ScaledIdentity

Dims = int | Sequence[int] | None


@ScaledIdentity.implements(torch.sum)
def sum_(input: ScaledIdentity, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    reduced = _reduced("torch.sum", dim)
    total = torch.sum(input.value, dtype=dtype)  # gives integers the dtype of a sum
    return _laid_out(total * input.n if len(reduced) == 2 else total, reduced, input.n, keepdim)


@ScaledIdentity.implements(torch.mean)
def mean(input: ScaledIdentity, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    reduced = _reduced("torch.mean", dim)
    value = torch.mean(input.value, dtype=dtype)  # refuses integers, as PyTorch does
    return _laid_out(value / input.n, reduced, input.n, keepdim)


@ScaledIdentity.implements(torch.linalg.vector_norm)
def vector_norm(
    x: ScaledIdentity, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    if not _has_norm(x) or (dtype is not None and dtype.is_complex != x.is_complex()):
        return NotImplemented
    reduced = _reduced("torch.linalg.vector_norm", dim)
    size = _magnitude(x, dtype)
    return _laid_out(_p_norm(size, float(ord), x.n, len(reduced)), reduced, x.n, keepdim)


@ScaledIdentity.implements(torch.linalg.matrix_norm)
def matrix_norm(
    input: ScaledIdentity,
    ord: Any = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    if not _has_norm(input) or (dtype is not None and dtype.is_complex != input.is_complex()):
        return NotImplemented
    if sorted(d % 2 for d in dim) != [0, 1]:
        raise ValueError(f"torch.linalg.matrix_norm: dim must name both dimensions of a matrix, got {tuple(dim)}")
    size = _magnitude(input, dtype)
    if ord == "fro":
        size = size * math.sqrt(input.n)
    elif ord == "nuc":
        size = size * input.n
    elif ord not in (1, -1, 2, -2, math.inf, -math.inf):
        raise ValueError(f"torch.linalg.matrix_norm: ord must be 'fro', 'nuc', ±1, ±2 or ±inf, got {ord!r}")
    return _laid_out(size, (0, 1), input.n, keepdim)


@ScaledIdentity.implements(torch.linalg.norm)
def linalg_norm(
    input: ScaledIdentity,
    ord: Any = None,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    if ord is None:
        return torch.linalg.vector_norm(input, 2, dim, keepdim, dtype=dtype)
    reduced = _reduced("torch.linalg.norm", dim)
    if len(reduced) == 2:
        return torch.linalg.matrix_norm(input, ord, reduced, keepdim, dtype=dtype)
    return torch.linalg.vector_norm(input, ord, reduced, keepdim, dtype=dtype)


@ScaledIdentity.implements(torch.norm)
def norm(
    input: ScaledIdentity,
    p: Any = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Any:
    if p == "nuc":
        if len(_reduced("torch.norm", dim)) != 2:
            return NotImplemented
        return torch.linalg.matrix_norm(input, "nuc", (0, 1), keepdim, dtype=dtype)
    return torch.linalg.vector_norm(input, 2 if p in ("fro", None) else p, dim, keepdim, dtype=dtype)


def _p_norm(size: Tensor, p: float, n: int, dims: int) -> Tensor:
    """The p-norm of a row (one dimension reduced) or of all elements (two); `size` is |value|."""
    count = n if dims == 2 else 1
    if p == math.inf:
        return size
    if p == 0:
        return (size != 0).to(size.dtype) * count
    if p < 0 and n > 1:  # a zero is among the elements, and the smallest magnitude rules
        return size * 0
    return size if math.isinf(p) else size * count ** (1 / p)


def _magnitude(x: ScaledIdentity, dtype: torch.dtype | None) -> Tensor:
    return (x.value if dtype is None else x.value.to(dtype)).abs()


def _has_norm(x: ScaledIdentity) -> bool:
    return x.is_floating_point() or x.is_complex()


def _reduced(name: str, dim: Dims) -> tuple[int, ...]:
    """The dimensions to reduce over: both when none is named."""
    given = (dim,) if isinstance(dim, int) else tuple(dim or ())
    for d in given:
        if not -2 <= d < 2:
            raise IndexError(f"{name}: a matrix has the dimensions -2 to 1, got {d}")
    found = tuple(d % 2 for d in given)
    if len(set(found)) < len(found):
        raise ValueError(f"{name}: dim names one dimension twice, got {given}")
    return found or (0, 1)


def _laid_out(value: Tensor, reduced: tuple[int, ...], n: int, keepdim: bool) -> Tensor:
    """One value where everything is reduced, n of them where a row or column each."""
    if len(reduced) == 2:
        return value.reshape(1, 1) if keepdim else value
    vector = value.expand(n).clone()
    return vector.unsqueeze(reduced[0]) if keepdim else vector
