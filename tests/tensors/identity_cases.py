"""Calls on a scaled identity or its dense form, for the tests to compare."""

# mypy: disable-error-code="arg-type, attr-defined, call-overload, comparison-overlap, list-item, misc, operator"
# PyTorch's stubs know of Tensors alone.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opwright.tensors import ScaledIdentity

COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.int32, torch.int64]

# Relative, by dtype, against the dense result in the same dtype; half of them for one rounding each side.
TOLERANCE = {
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
    torch.float32: 1e-5,
    torch.float64: 1e-12,
    torch.complex64: 1e-5,
    torch.complex128: 1e-12,
}


def fill(dtype: torch.dtype, *shape: int) -> Tensor:
    numbers = torch.linspace(-2, 2, max(math.prod(shape), 1)).reshape(shape)
    return (
        torch.complex(numbers, numbers.flip(0) if shape else numbers).to(dtype)
        if dtype.is_complex
        else numbers.to(dtype)
    )


def pair(dtype: torch.dtype, n: int, value: float) -> tuple[ScaledIdentity, Tensor]:
    number: Any = int(value) or 2 if dtype in INTEGERS else complex(value, value / 2) if dtype.is_complex else value
    x = ScaledIdentity(n, number, dtype=dtype)
    return x, torch.eye(n, dtype=dtype) * x.value


def agree(got: Any, expected: Any) -> None:
    if not isinstance(expected, Tensor):
        assert got == expected
        return
    got = got.dense() if isinstance(got, ScaledIdentity) else got
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if expected.dtype in TOLERANCE:
        tolerance = TOLERANCE[expected.dtype]
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    else:
        assert torch.equal(got, expected)


Case = Callable[[Any, Any], Any]

# (x, t): x is the scaled identity or its dense form, t(*shape) a tensor of its dtype with as many rows as asked.
ARITHMETIC: dict[str, Case] = {
    "add": lambda x, t: torch.add(x, x),
    "add alpha": lambda x, t: torch.add(x, x, alpha=3),
    "add out": lambda x, t: torch.add(x, x, alpha=2, out=torch.empty(0, dtype=x.dtype)),
    "add dense": lambda x, t: x + t(len(x), len(x)),
    "add dense alpha": lambda x, t: torch.add(t(len(x), len(x)), x, alpha=2),
    "add broadcast": lambda x, t: x + t(len(x)),
    "add number": lambda x, t: x + 2,
    "radd number": lambda x, t: 2 + x,
    "sub": lambda x, t: torch.sub(x, x * 2, alpha=3),
    "sub dense": lambda x, t: t(len(x), len(x)) - x,
    "rsub": lambda x, t: 2 - x,
    "mul number": lambda x, t: x * 3,
    "rmul number": lambda x, t: 3 * x,
    "mul tensor of one": lambda x, t: x * t(),
    "mul tensor (1, 1)": lambda x, t: t(1, 1) * x,
    "mul its kind": lambda x, t: x * x,
    "mul dense": lambda x, t: x * t(len(x), len(x)),
    "mul other dtype": lambda x, t: x * torch.tensor(1.5, dtype=torch.float64),
    "mul other dtype of rank": lambda x, t: x * torch.tensor([1.5], dtype=torch.float64),
    "pow": lambda x, t: x**2,
    "pow zero": lambda x, t: x**0,
    "neg": lambda x, t: -x,
    "abs": lambda x, t: abs(x),
    "conj": lambda x, t: torch.conj(x).clone(),
    "positive": lambda x, t: +x,
    "clone": lambda x, t: x.clone(),
    "detach": lambda x, t: x.detach(),
    "transpose": lambda x, t: torch.transpose(x, 0, 1),
    "swapaxes": lambda x, t: torch.swapaxes(x, axis0=0, axis1=-1),
    "T": lambda x, t: x.T,
    "mT": lambda x, t: x.mT,
    "H": lambda x, t: x.H.clone(),
    "mH": lambda x, t: x.mH.clone(),
    "adjoint": lambda x, t: torch.adjoint(x).clone(),
    "t": lambda x, t: x.t(),
    "trace": lambda x, t: torch.trace(x),
    "diag": lambda x, t: torch.diag(x),
    "diag above": lambda x, t: torch.diag(x, 1),
    "diagonal": lambda x, t: torch.diagonal(x, offset=-1, dim1=1, dim2=0),
    "linalg.diagonal": lambda x, t: torch.linalg.diagonal(x),
    "sum": lambda x, t: x.sum(),
    "sum dim": lambda x, t: x.sum(0),
    "sum dim keepdim": lambda x, t: torch.sum(x, dim=-1, keepdim=True),
    "sum both": lambda x, t: torch.sum(x, dim=(0, 1), keepdim=True),
    "sum dtype": lambda x, t: x.sum(dtype=torch.complex128),
    "equal": lambda x, t: torch.equal(x, x + x),
    "equal itself": lambda x, t: torch.equal(x, x.clone()),
    "allclose": lambda x, t: torch.allclose(x, x * 2, rtol=0.1),
    "allclose wide": lambda x, t: torch.allclose(x, x * 2, rtol=1.1),
    "eq": lambda x, t: x == x,
    "stack": lambda x, t: torch.stack([x, x]),
    "cat": lambda x, t: torch.cat((x, t(1, len(x)))),
    "element": lambda x, t: x[0, 0],
    "row": lambda x, t: x[-1],
    "column": lambda x, t: x[:, 0],
    "slice": lambda x, t: x[1:],
    "block": lambda x, t: x[1:, 1:] if len(x) > 1 else x,
    "step": lambda x, t: x[::2, ::2],
    "offset block": lambda x, t: x[:-1, 1:],
    "all": lambda x, t: x[...],
    "new axis": lambda x, t: x[None, 0],
    "indices": lambda x, t: x[[0, -1], [0, 0]],
    "tensor index": lambda x, t: x[torch.tensor([0, len(x) - 1])],
    "mask": lambda x, t: x[torch.ones(len(x), len(x), dtype=torch.bool)],
    "double": lambda x, t: x.to(torch.complex128),
    "kron": lambda x, t: torch.kron(x, x),
    "kron dense": lambda x, t: torch.kron(x, torch.ones(2, 3, dtype=x.dtype)),
    "matrix_power": lambda x, t: torch.matrix_power(x, 3),
    "matrix_power 0": lambda x, t: torch.linalg.matrix_power(x, n=0),
    "len": lambda x, t: (len(x), x.dim(), x.size(), x.size(-1), x.shape, x.numel(), x.ndim),
}
PRODUCTS: dict[str, Case] = {
    "matmul its kind": lambda x, t: x @ x,
    "matmul matrix": lambda x, t: x @ t(len(x), 2),
    "matmul vector": lambda x, t: torch.matmul(x, t(len(x))),
    "matmul batch": lambda x, t: x @ t(2, len(x), 3),
    "rmatmul matrix": lambda x, t: t(2, len(x)) @ x,
    "rmatmul vector": lambda x, t: t(len(x)) @ x,
    "rmatmul batch": lambda x, t: t(2, 3, len(x)).matmul(x),
    "linalg.matmul": lambda x, t: torch.linalg.matmul(x, t(len(x), 1)),
    "mm": lambda x, t: torch.mm(x, t(len(x), 2)),
    "mv": lambda x, t: x.mv(t(len(x))),
    "linear": lambda x, t: torch.nn.functional.linear(t(2, len(x)), x, bias=t(len(x))),
}
REAL_ALGEBRA: dict[str, Case] = {
    "div number": lambda x, t: x / 4,
    "div tensor": lambda x, t: torch.true_divide(x, torch.tensor(4.0, dtype=x.dtype)),
    "div zero": lambda x, t: x / 0,
    "mul inf": lambda x, t: x * math.inf,
    "rdiv": lambda x, t: 2 / (x + 1),
    "mean": lambda x, t: x.mean(),
    "mean dim": lambda x, t: torch.mean(x, dim=0, keepdim=True),
    "mean dims": lambda x, t: x.mean((0, 1)),
}
ROUNDING: dict[str, Case] = {
    "div floor": lambda x, t: torch.div(x, 2, rounding_mode="floor"),
    "div trunc": lambda x, t: torch.div(x, 2, rounding_mode="trunc"),
}
NORMS: dict[str, Case] = {
    **{
        f"vector_norm {p}": lambda x, t, p=p: torch.linalg.vector_norm(x, p)
        for p in (0, 1, 2, 3.5, math.inf, -math.inf, -1)
    },
    "vector_norm dim": lambda x, t: torch.linalg.vector_norm(x, 3, dim=1, keepdim=True),
    "vector_norm dtype": lambda x, t: torch.linalg.vector_norm(x, dtype=torch.promote_types(x.dtype, torch.float64)),
    **{f"norm {p}": lambda x, t, p=p: torch.norm(x, p) for p in ("fro", 1, 2, 3, math.inf)},
    "norm method": lambda x, t: x.norm(dim=0),
    "linalg.norm": lambda x, t: torch.linalg.norm(x),
    "linalg.norm dim": lambda x, t: torch.linalg.norm(x, 1, dim=1),
}
# PyTorch has no LAPACK for half precision, so these have nothing to be compared with there.
LAPACK: dict[str, Case] = {
    "inverse": lambda x, t: torch.inverse(x),
    "inv": lambda x, t: torch.linalg.inv(A=x),
    "solve": lambda x, t: torch.linalg.solve(x, t(len(x), 2)),
    "solve vector": lambda x, t: torch.linalg.solve(x, t(len(x))),
    "solve batch": lambda x, t: torch.linalg.solve(x, t(2, len(x), 3)),
    "solve left": lambda x, t: torch.linalg.solve(x, t(2, len(x)), left=False),
    "solve its kind": lambda x, t: torch.linalg.solve(x, x * 2),
    "solve dense": lambda x, t: torch.linalg.solve(x + 1 - 1, x),
    "det": lambda x, t: torch.det(x),
    "linalg.det": lambda x, t: torch.linalg.det(x),
    "logdet": lambda x, t: torch.logdet(x),
    "eigvalsh": lambda x, t: torch.linalg.eigvalsh(x),
    "matrix_power -2": lambda x, t: torch.linalg.matrix_power(x, -2),
    **{
        f"matrix_norm {p}": lambda x, t, p=p: torch.linalg.matrix_norm(x, p)
        for p in ("fro", "nuc", 1, -1, 2, -2, math.inf)
    },
    "matrix_norm keepdim": lambda x, t: torch.linalg.matrix_norm(x, dim=(0, 1), keepdim=True),
    "norm nuc": lambda x, t: torch.norm(x, "nuc"),
    "linalg.norm nuc": lambda x, t: torch.linalg.norm(x, "nuc", dim=(0, 1)),
}
ALL = {**ARITHMETIC, **PRODUCTS, **REAL_ALGEBRA, **ROUNDING, **NORMS, **LAPACK}
