"""Python's operators, each handed to the torch function that a Tensor's operator would call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from opwright.tensors.protocol import ask

T = torch.Tensor


class Operators:
    """Gives a tensor-like type the operators of a Tensor.

    One line each: a loop could write them, but neither a reader nor a type checker would see them.
    """

    # NumPy's operators step back for ours, as they do for a Tensor's, instead of converting.
    __array_priority__ = 1000

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def dense(self) -> torch.Tensor:
        """This value as a Tensor, of its shape, dtype and device, part of the autograd graph."""
        raise NotImplementedError(f"{type(self).__name__} has no dense form")

    def become(self, other: Operators) -> None:
        """Take over the contents of `other`, of the same type: what in-place functions and `out=` do."""
        contents = dict(vars(other))
        vars(self).clear()
        vars(self).update(contents)

    def __add__(self, other: Any) -> Any:
        return ask(T.__add__, self, other)

    def __radd__(self, other: Any) -> Any:
        return ask(T.__radd__, self, other)

    def __iadd__(self, other: Any) -> Any:
        return ask(T.add_, self, other)

    def __sub__(self, other: Any) -> Any:
        return ask(T.__sub__, self, other)

    def __rsub__(self, other: Any) -> Any:
        return ask(T.__rsub__, self, other)

    def __isub__(self, other: Any) -> Any:
        return ask(T.sub_, self, other)

    def __mul__(self, other: Any) -> Any:
        return ask(T.__mul__, self, other)

    def __rmul__(self, other: Any) -> Any:
        return ask(T.__rmul__, self, other)

    def __imul__(self, other: Any) -> Any:
        return ask(T.mul_, self, other)

    def __truediv__(self, other: Any) -> Any:
        return ask(T.__truediv__, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return ask(T.__rtruediv__, self, other)

    def __itruediv__(self, other: Any) -> Any:
        return ask(T.div_, self, other)

    def __floordiv__(self, other: Any) -> Any:
        return ask(T.__floordiv__, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return ask(T.__rfloordiv__, self, other)

    def __ifloordiv__(self, other: Any) -> Any:
        return ask(T.floor_divide_, self, other)

    def __mod__(self, other: Any) -> Any:
        return ask(T.__mod__, self, other)

    def __rmod__(self, other: Any) -> Any:
        return ask(T.__rmod__, self, other)

    def __imod__(self, other: Any) -> Any:
        return ask(T.remainder_, self, other)

    def __pow__(self, other: Any) -> Any:
        return ask(T.__pow__, self, other)

    def __rpow__(self, other: Any) -> Any:
        return ask(T.__rpow__, self, other)

    def __ipow__(self, other: Any) -> Any:
        return ask(T.pow_, self, other)

    def __matmul__(self, other: Any) -> Any:
        return ask(T.__matmul__, self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return ask(T.__rmatmul__, self, other)

    def __and__(self, other: Any) -> Any:
        return ask(T.__and__, self, other)

    def __rand__(self, other: Any) -> Any:
        return ask(T.__rand__, self, other)

    def __or__(self, other: Any) -> Any:
        return ask(T.__or__, self, other)

    def __ror__(self, other: Any) -> Any:
        return ask(T.__ror__, self, other)

    def __xor__(self, other: Any) -> Any:
        return ask(T.__xor__, self, other)

    def __rxor__(self, other: Any) -> Any:
        return ask(T.__rxor__, self, other)

    def __lshift__(self, other: Any) -> Any:
        return ask(T.__lshift__, self, other)

    def __rlshift__(self, other: Any) -> Any:
        return ask(T.__rlshift__, self, other)

    def __rshift__(self, other: Any) -> Any:
        return ask(T.__rshift__, self, other)

    def __rrshift__(self, other: Any) -> Any:
        return ask(T.__rrshift__, self, other)

    def __neg__(self) -> Any:
        return ask(T.neg, self)

    def __pos__(self) -> Any:
        return ask(T.positive, self)

    def __abs__(self) -> Any:
        return ask(T.abs, self)

    def __invert__(self) -> Any:
        return ask(T.__invert__, self)

    def __eq__(self, other: Any) -> Any:
        return ask(T.__eq__, self, other)

    def __ne__(self, other: Any) -> Any:
        return ask(T.__ne__, self, other)

    def __lt__(self, other: Any) -> Any:
        return ask(T.__lt__, self, other)

    def __le__(self, other: Any) -> Any:
        return ask(T.__le__, self, other)

    def __gt__(self, other: Any) -> Any:
        return ask(T.__gt__, self, other)

    def __ge__(self, other: Any) -> Any:
        return ask(T.__ge__, self, other)

    # Elementwise == would otherwise take the hash away, as it would from a Tensor.
    def __hash__(self) -> int:
        return id(self)

    def __getitem__(self, key: Any) -> Any:
        return ask(T.__getitem__, self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        ask(T.__setitem__, self, key, value)

    def __len__(self) -> int:
        return int(ask(T.__len__, self))

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __reversed__(self) -> Any:
        return ask(T.__reversed__, self)

    def __contains__(self, element: Any) -> bool:
        return bool(ask(T.__contains__, self, element))

    def __bool__(self) -> bool:
        return bool(ask(T.__bool__, self))

    def __int__(self) -> int:
        return int(ask(T.__int__, self))

    def __float__(self) -> float:
        return float(ask(T.__float__, self))

    def __complex__(self) -> complex:
        return complex(ask(T.__complex__, self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return ask(T.__array__, self, dtype)
