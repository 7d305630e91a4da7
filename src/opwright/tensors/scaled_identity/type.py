"""The type itself."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from opwright.tensors.like import TensorLike


class ScaledIdentity(TensorLike, fallback="dense"):
    """value · I, an n×n matrix that stores one number.

    `value` is a number or a tensor of one element, which may require a gradient; `dtype` and `device` are its own
    unless given. Sums, products, inverses, determinants, norms and the like cost O(1) memory, and products with
    dense matrices never build the identity. Where a result is no scaled identity the fallback applies; to have an
    error instead:

        class Strict(ScaledIdentity, fallback="error"): ...

    Zeros off the diagonal are exact: a product with a tensor that holds inf or nan, or a division by one that
    holds 0, leaves them zero, where the dense computation would make them nan. Equivalent to: `value * torch.eye(n)`.

    >>> x = ScaledIdentity(3, 2.0)
    >>> torch.add(x, x, alpha=3)
    ScaledIdentity(3, 8.0)
    >>> torch.logdet(x), x @ torch.ones(3)
    (tensor(2.0794), tensor([2., 2., 2.]))
    >>> big = ScaledIdentity(10**6, 0.5)
    >>> (big @ big).inverse().trace()
    tensor(4000000.)
    """

    n: int
    """Rows, and columns."""
    value: Tensor
    """The number on the diagonal, without dimensions."""

    def __init__(
        self,
        n: int,
        value: complex | Tensor = 1.0,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if isinstance(n, (bool, float, Tensor)) or not hasattr(n, "__index__"):
            raise TypeError(f"ScaledIdentity: n must be an int, got {n!r}")
        if n < 1:
            raise ValueError(f"ScaledIdentity: n must be at least 1, got {n}")
        if not isinstance(value, (bool, int, float, complex, Tensor)):
            raise TypeError(f"ScaledIdentity: value must be a number or a tensor, got {type(value).__name__}")
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise ValueError(f"ScaledIdentity: value must have one element, got shape {tuple(value.shape)}")
            # A leaf of the autograd graph stays one where nothing has to change.
            value = value if value.dim() == 0 else value.reshape(())
            self.value = value.to(dtype=dtype or value.dtype, device=device or value.device)
        else:
            self.value = torch.tensor(value, dtype=dtype, device=device)
        self.n = n if torch.compiler.is_compiling() else operator.index(n)

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """(n, n)."""
        return torch.Size((self.n, self.n))

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """The dtype of `value`."""
        return self.value.dtype

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device of `value`."""
        return self.value.device

    @property
    def requires_grad(self) -> bool:
        """Whether `value` does."""
        return self.value.requires_grad

    def dense(self) -> Tensor:
        """The n×n Tensor, part of the autograd graph of `value`.

        >>> ScaledIdentity(2, 3).dense()
        tensor([[3, 0],
                [0, 3]])
        """
        on = torch.eye(self.n, dtype=torch.bool, device=self.device)
        return torch.where(on, self.value, self.value.new_zeros(()))

    @classmethod
    def example(cls) -> ScaledIdentity:
        """A small one, for `coverage` to try functions on."""
        return cls(3, 2.0)

    def like(self, value: Tensor) -> ScaledIdentity:
        """One of the same type and size with another value."""
        return type(self)(self.n, value)

    def __repr__(self) -> str:
        value = self.value.detach()
        extra = "" if self.dtype in _SPOKEN else f", dtype={self.dtype}"
        extra += "" if self.is_cpu else f", device='{self.device}'"
        extra += ", requires_grad=True" if self.requires_grad else ""
        return f"{type(self).__name__}({self.n}, {'...' if value.is_meta else value.item()}{extra})"


# Dtypes that a number printed bare already implies.
_SPOKEN = (torch.float32, torch.int64, torch.bool, torch.complex64)


def same(*values: Any) -> bool:
    """Whether all are scaled identities of one size."""
    return all(isinstance(v, ScaledIdentity) for v in values) and len({v.n for v in values}) == 1


def cell(x: ScaledIdentity) -> Tensor:
    """The value as a 1×1 matrix, so that PyTorch's own promotion of dtypes applies as it would to the dense form."""
    return x.value.reshape(1, 1)


def scalar(value: Any) -> Any:
    """`value` if it scales a matrix without changing its shape: a number or a tensor of one element; else None.

    A number that makes nan of zeros is none: then the result is no scaled identity. The value of a tensor is not
    looked at, which would make a GPU wait.
    """
    if isinstance(value, (bool, int, float, complex)):
        return value if value == value and value - value == 0 else None
    if isinstance(value, Tensor) and value.numel() == 1 and value.dim() <= 2:
        return value
    return None
