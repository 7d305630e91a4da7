"""Linear algebra: products, transposes, inverses, determinants, spectra."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opwright.tensors.scaled_identity.type import ScaledIdentity, cell, same


@ScaledIdentity.implements(torch.matmul)
def matmul(input: Any, other: Any) -> Any:
    return _product("torch.matmul", input, other)


@ScaledIdentity.implements(torch.mm)
def mm(input: Any, mat2: Any, out_dtype: torch.dtype | None = None) -> Any:
    if out_dtype is not None:
        return NotImplemented
    _require_rank("torch.mm", "mat2", mat2 if isinstance(input, ScaledIdentity) else input, 2)
    return _product("torch.mm", input, mat2)


@ScaledIdentity.implements(torch.mv)
def mv(input: Any, vec: Any) -> Any:
    if not isinstance(input, ScaledIdentity):
        return NotImplemented
    _require_rank("torch.mv", "vec", vec, 1)
    return _product("torch.mv", input, vec)


@ScaledIdentity.implements(torch.nn.functional.linear)
def linear(input: Any, weight: Any, bias: Tensor | None = None) -> Any:
    product = _product("torch.nn.functional.linear", input, weight.mT if weight.dim() > 1 else weight)
    return product if bias is None else product + bias


def _product(name: str, left: Any, right: Any) -> Any:
    """left @ right, where at least one is a scaled identity and so the other's shape is the result's."""
    _require_one_dtype(name, left, right)
    if isinstance(left, ScaledIdentity) and isinstance(right, ScaledIdentity):
        if left.n != right.n:
            raise ValueError(f"{name}: the sizes {left.n} and {right.n} of the scaled identities must agree")
        return left.like(left.value * right.value)
    scaled, dense = (left, right) if isinstance(left, ScaledIdentity) else (right, left)
    side = -2 if scaled is left and dense.dim() > 1 else -1
    if dense.dim() == 0 or dense.shape[side] != scaled.n:
        raise ValueError(f"{name}: {tuple(left.shape)} and {tuple(right.shape)} do not multiply")
    return scaled.value * dense


@ScaledIdentity.implements(torch.kron)
def kron(input: Any, other: Any) -> Any:
    if not (isinstance(input, ScaledIdentity) and isinstance(other, ScaledIdentity)):
        return NotImplemented
    return type(input)(input.n * other.n, (cell(input) * cell(other)).reshape(()))


@ScaledIdentity.implements(torch.transpose)
def transpose(input: ScaledIdentity, dim0: int, dim1: int) -> ScaledIdentity:
    for dim in (dim0, dim1):
        if not -2 <= dim < 2:
            raise IndexError(f"torch.transpose: a matrix has the dimensions -2 to 1, got {dim}")
    return input


# The stubs take properties for values.
_TENSOR: Any = torch.Tensor


@ScaledIdentity.implements(torch.t, _TENSOR.T.__get__, _TENSOR.mT.__get__)
def t(input: ScaledIdentity) -> ScaledIdentity:
    return input


@ScaledIdentity.implements(torch.adjoint, _TENSOR.H.__get__, _TENSOR.mH.__get__)
def adjoint(input: ScaledIdentity) -> ScaledIdentity:
    return input.like(input.value.conj())


@ScaledIdentity.implements(torch.linalg.inv)
def inv(A: ScaledIdentity) -> Any:
    if not _divides(A):
        return NotImplemented
    _require_regular("torch.linalg.inv", A)
    return A.like(1 / A.value)


@ScaledIdentity.implements(torch.linalg.solve)
def solve(A: Any, B: Any, *, left: bool = True) -> Any:
    if not isinstance(A, ScaledIdentity) or not _divides(A):
        return NotImplemented
    _require_one_dtype("torch.linalg.solve", A, B)
    _require_regular("torch.linalg.solve", A)
    if isinstance(B, ScaledIdentity):
        if not same(A, B):
            raise ValueError(f"torch.linalg.solve: the sizes {A.n} and {B.n} of the scaled identities must agree")
        return A.like(B.value / A.value)
    side = -2 if left and B.dim() > 1 else -1
    if B.dim() == 0 or (B.dim() == 1 and not left) or B.shape[side] != A.n:
        raise ValueError(
            f"torch.linalg.solve: A of shape {tuple(A.shape)} and B of shape {tuple(B.shape)} do not fit, left={left}"
        )
    return B / A.value


@ScaledIdentity.implements(torch.linalg.det)
def det(A: ScaledIdentity) -> Any:
    return A.value**A.n if _divides(A) else NotImplemented


@ScaledIdentity.implements(torch.logdet)
def logdet(input: ScaledIdentity) -> Any:
    if not _divides(input):
        return NotImplemented
    value, n = input.value, input.n
    if input.is_complex():  # the principal logarithm of value**n, without forming value**n
        return torch.log(torch.sgn(value) ** n) + n * torch.log(value.abs())
    size = n * torch.log(value.abs())
    # The determinant of an odd number of negative factors is negative, and its logarithm nan.
    return size if n % 2 == 0 else torch.where(value < 0, torch.nan, size)


@ScaledIdentity.implements(torch.linalg.matrix_power)
def matrix_power(A: ScaledIdentity, n: int) -> Any:
    if n < 0:
        if not _divides(A):
            return NotImplemented
        _require_regular("torch.linalg.matrix_power", A)
    return A.like(A.value**n)


@ScaledIdentity.implements(torch.trace)
def trace(input: ScaledIdentity) -> Tensor:
    return cell(input).sum() * input.n  # sum gives integers the dtype that trace would


@ScaledIdentity.implements(torch.diag)
def diag(input: ScaledIdentity, diagonal: int = 0) -> Tensor:
    return diagonal_of(input, diagonal).clone()


@ScaledIdentity.implements(torch.diagonal)
def diagonal_of(input: ScaledIdentity, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    if {dim1 % 2, dim2 % 2} != {0, 1} or not (-2 <= dim1 < 2 and -2 <= dim2 < 2):
        raise IndexError(f"torch.diagonal: dim1 and dim2 must be the two dimensions of a matrix, got {dim1} and {dim2}")
    value = input.value if offset == 0 else torch.zeros_like(input.value)
    return value.expand(max(input.n - abs(offset), 0))


@ScaledIdentity.implements(torch.linalg.eigvalsh)
def eigvalsh(input: ScaledIdentity, UPLO: str = "L") -> Any:
    if not _divides(input) or UPLO not in ("L", "U"):
        return NotImplemented
    value = input.value.real if input.is_complex() else input.value  # as LAPACK does, which believes in Hermitian
    return value.expand(input.n).clone()


def _divides(x: ScaledIdentity) -> bool:
    """Whether linear algebra exists for this dtype; where not, PyTorch's own error is the right one."""
    return x.is_floating_point() or x.is_complex()


def _require_regular(name: str, A: ScaledIdentity) -> None:
    # Neither a graph nor the meta device nor vmap has a value to look at.
    if torch.compiler.is_compiling() or A.value.is_meta or torch._C._functorch.peek_interpreter_stack() is not None:
        return
    if bool(A.value == 0):
        raise torch.linalg.LinAlgError(f"{name}: the matrix is singular, its value is 0")  # type: ignore[attr-defined]


def _require_one_dtype(name: str, left: Any, right: Any) -> None:
    if left.dtype != right.dtype:
        raise TypeError(f"{name}: both must have one dtype, got {left.dtype} and {right.dtype}")


def _require_rank(name: str, argument: str, value: Any, rank: int) -> None:
    if value.dim() != rank:
        raise ValueError(f"{name}: {argument} must have {rank} dimensions, got {value.dim()}")
