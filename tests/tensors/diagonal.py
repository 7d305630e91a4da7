"""A tensor-like type as a user would write it, for the tests to use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opwright.tensors import TensorLike


class Diagonal(TensorLike, fallback="dense"):
    def __init__(self, values: Tensor) -> None:
        self.values = values

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return torch.Size((len(self.values), len(self.values)))

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.values.dtype

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.values.device

    def dense(self) -> Tensor:
        return torch.diag(self.values)


@Diagonal.implements(torch.add)
def add(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    if not (isinstance(input, Diagonal) and isinstance(other, Diagonal)):
        return NotImplemented
    return type(input)(torch.add(input.values, other.values, alpha=alpha))


@Diagonal.implements(torch.sub)
def sub(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    if not (isinstance(input, Diagonal) and isinstance(other, Diagonal)):
        return NotImplemented
    return type(input)(torch.sub(input.values, other.values, alpha=alpha))


@Diagonal.implements(torch.trace)
def trace(input: Diagonal) -> Tensor:
    return input.values.sum()


@Diagonal.implements(torch.Tensor.to)
def to(input: Any, *args: Any, **kwargs: Any) -> Any:
    return type(input)(input.values.to(*args, **kwargs))


@Diagonal.implements(torch.cat)
def cat(tensors: Any, dim: int = 0) -> Any:
    return NotImplemented


class Strict(Diagonal, fallback="error"):
    pass


def diagonal(*values: float) -> Diagonal:
    return Diagonal(torch.tensor(values))
