"""Every override of the scaled identity against the dense computation, values and gradients."""

# mypy: disable-error-code="arg-type, attr-defined, call-overload, comparison-overlap, list-item, misc, operator"
# PyTorch's stubs know of Tensors alone.

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from opwright.tensors import ScaledIdentity

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
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

sizes = st.integers(1, 5)
values = st.floats(0.25, 3.0).map(lambda v: round(v * 16) / 16) | st.floats(-3.0, -0.25).map(
    lambda v: round(v * 16) / 16
)


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


def compare(name: str, dtype: torch.dtype, n: int, value: float) -> None:
    x, dense = pair(dtype, n, value)

    def make(*shape: int) -> Tensor:
        return fill(dtype, *shape)

    agree(ALL[name](x, make), ALL[name](dense, make))


def cases(*families: dict[str, Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [name for family in families for name in family])


@cases(ARITHMETIC, PRODUCTS, REAL_ALGEBRA, ROUNDING, NORMS, LAPACK)
@settings(max_examples=12, deadline=None)
@given(n=sizes, value=values, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_real_results_are_those_of_the_dense_matrix(name: str, n: int, value: float, dtype: torch.dtype) -> None:
    compare(name, dtype, n, value)


# PyTorch's own dense norm of order 0 casts within.
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@cases(ARITHMETIC, PRODUCTS, REAL_ALGEBRA, NORMS, LAPACK)
@settings(max_examples=6, deadline=None)
@given(n=sizes, value=values, dtype=st.sampled_from(COMPLEX))
def test_complex_results_are_those_of_the_dense_matrix(name: str, n: int, value: float, dtype: torch.dtype) -> None:
    compare(name, dtype, n, value)


@cases(ARITHMETIC, PRODUCTS, REAL_ALGEBRA, ROUNDING, NORMS)
@settings(max_examples=4, deadline=None)
@given(n=sizes, value=values, dtype=st.sampled_from([torch.float16, torch.bfloat16]))
def test_half_precision_results_are_those_of_the_dense_matrix(
    name: str, n: int, value: float, dtype: torch.dtype
) -> None:
    compare(name, dtype, n, value)


@cases(ARITHMETIC, PRODUCTS, ROUNDING)
@settings(max_examples=4, deadline=None)
@given(n=sizes, value=values, dtype=st.sampled_from(INTEGERS))
def test_integer_results_are_those_of_the_dense_matrix(name: str, n: int, value: float, dtype: torch.dtype) -> None:
    compare(name, dtype, n, value)


# No gradient in question, or none in PyTorch either (a real sum in a complex dtype), or none that means anything.
UNGRADED = {
    *("detach", "equal", "equal itself", "allclose", "allclose wide", "eq", "len", "add out", "sum dtype"),
    *("div zero", "mul inf", "vector_norm 0", "vector_norm -inf", "vector_norm -1"),
}
GRADIENTS = sorted(set(ALL) - UNGRADED)


@pytest.mark.parametrize("name", GRADIENTS)
@settings(max_examples=6, deadline=None)
@given(n=sizes, value=values)
def test_gradients_of_the_value_are_those_of_the_dense_matrix(name: str, n: int, value: float) -> None:
    gradients = []
    for structured in (True, False):
        v = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        x = ScaledIdentity(n, v) if structured else torch.eye(n, dtype=torch.float64) * v
        result = ALL[name](x, lambda *shape: fill(torch.float64, *shape))
        result = result.dense() if isinstance(result, ScaledIdentity) else result
        weights = torch.linspace(0.5, 1.5, result.numel(), dtype=torch.float64).reshape(result.shape)
        total = torch.view_as_real(result.resolve_conj()).sum() if result.is_complex() else (result * weights).sum()
        if not total.requires_grad:  # a power of 0, a block off the diagonal
            gradients.append(torch.zeros(()))
            continue
        (gradient,) = torch.autograd.grad(total, v, allow_unused=True)
        gradients.append(torch.zeros(()) if gradient is None else gradient)
    torch.testing.assert_close(gradients[0].double(), gradients[1].double(), equal_nan=True)


def test_second_derivatives_agree_with_the_closed_form() -> None:
    v = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: ScaledIdentity(4, v).det(), v)
    assert torch.autograd.gradgradcheck(lambda v: ScaledIdentity(4, v).det() + ScaledIdentity(4, v).logdet(), v)


def test_torch_func_differentiates_and_batches_it() -> None:
    values = torch.tensor([1.0, 2.0, 4.0])
    batched = torch.vmap(torch.func.grad(lambda v: ScaledIdentity(3, v).inverse().trace()))(values)
    torch.testing.assert_close(batched, -3 / values**2)


def test_it_is_unequal_to_what_is_no_number_and_refuses_to_add_it() -> None:
    x = ScaledIdentity(2)
    assert (x == None) is False  # noqa: E711
    with pytest.raises(TypeError, match="unsupported operand"):
        x + "a"


SINGULAR: list[Case] = [
    lambda x, t: torch.linalg.inv(x),
    lambda x, t: torch.linalg.solve(x, t(3)),
    lambda x, t: torch.linalg.matrix_power(x, -1),
]


@pytest.mark.parametrize("solve", SINGULAR)
def test_a_singular_matrix_is_refused_as_pytorch_refuses_it(solve: Case) -> None:
    x, dense = pair(torch.float32, 3, 0.0)
    for form in (x, dense):
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):  # type: ignore[attr-defined]
            solve(form, lambda *shape: torch.ones(shape))


KEPT = [
    *("add", "sub", "mul number", "mul its kind", "div number", "pow", "neg", "transpose", "T", "H", "inverse"),
    *("solve its kind", "matmul its kind", "matrix_power", "matrix_power -2", "block", "all", "clone", "double"),
]


@pytest.mark.parametrize("name", KEPT)
def test_the_algebra_stays_in_the_type_and_in_a_subclass(name: str) -> None:
    class Sub(ScaledIdentity, fallback="error"):
        pass

    for kind in (ScaledIdentity, Sub):
        result = ALL[name](kind(3, 2.0), lambda *shape: torch.ones(shape))
        assert type(result) is kind


def test_a_million_rows_cost_one_number() -> None:
    v = torch.tensor(0.5, requires_grad=True)
    x = ScaledIdentity(10**6, v)
    y = ((x @ x + x - x / 2) * 4).T.inverse()
    assert y.value.item() == pytest.approx(0.5)
    assert x.trace().item() == 500_000
    assert x.logdet().item() == pytest.approx(10**6 * math.log(0.5))
    assert (x @ torch.ones(10**6))[0].item() == 0.5
    assert x[7, 7].item() == 0.5
    assert x[7].sum().item() == 0.5
    assert x[10:20, 10:20].shape == (10, 10)
    assert torch.norm(x).item() == 500.0
    assert x.mean().item() == pytest.approx(5e-7)
    assert torch.equal(x, x.clone())
    y.trace().backward()
    assert v.grad is not None


FALLBACKS: list[Callable[[ScaledIdentity], Any]] = [
    lambda x: x.exp(),
    lambda x: x + 1,
    lambda x: torch.stack([x, x]),
    lambda x: x[1:],
    lambda x: x[:, :-1],
]


@pytest.mark.parametrize("convert", FALLBACKS)
def test_four_terabytes_are_announced_not_allocated(convert: Callable[[ScaledIdentity], Any]) -> None:
    with pytest.raises(ValueError, match=r"would need 4\.0 TB, more than ScaledIdentity\.dense_limit"):
        convert(ScaledIdentity(10**6, 2.0))


@pytest.mark.parametrize(
    "arguments, error, sentence",
    [
        ((0,), ValueError, "n must be at least 1, got 0"),
        ((2.0,), TypeError, "n must be an int, got 2.0"),
        ((True,), TypeError, "n must be an int, got True"),
        ((2, "3"), TypeError, "value must be a number or a tensor, got str"),
        ((2, torch.ones(2)), ValueError, r"value must have one element, got shape \(2,\)"),
    ],
)
def test_what_is_no_scaled_identity_is_refused(arguments: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=f"ScaledIdentity: {sentence}"):
        ScaledIdentity(*arguments)


MISFITS: list[tuple[Callable[[ScaledIdentity], Any], type[Exception], str]] = [
    (lambda x: x @ torch.ones(4), ValueError, r"torch.matmul: \(3, 3\) and \(4,\) do not multiply"),
    (lambda x: torch.ones(3, 4) @ x, ValueError, r"torch.matmul: \(3, 4\) and \(3, 3\) do not multiply"),
    (lambda x: x @ ScaledIdentity(4), ValueError, "the sizes 3 and 4 of the scaled identities must agree"),
    (lambda x: x @ torch.ones(3, dtype=torch.float64), TypeError, "both must have one dtype, got torch.float32"),
    (lambda x: torch.mm(x, torch.ones(3)), ValueError, "torch.mm: mat2 must have 2 dimensions, got 1"),
    (lambda x: torch.linalg.solve(x, torch.ones(4)), ValueError, r"A of shape \(3, 3\) and B of shape \(4,\)"),
    (lambda x: x.transpose(0, 2), IndexError, "a matrix has the dimensions -2 to 1, got 2"),
    (lambda x: x.sum(2), IndexError, "torch.sum: a matrix has the dimensions -2 to 1, got 2"),
    (lambda x: x.sum((0, -2)), ValueError, "names one dimension twice"),
    (lambda x: torch.linalg.matrix_norm(x, 3), ValueError, "ord must be 'fro', 'nuc'"),
    (lambda x: x + ScaledIdentity(4), RuntimeError, "size of tensor"),
    (lambda x: x[3], IndexError, "out of bounds"),
]


@pytest.mark.parametrize("call, error, sentence", MISFITS)
def test_arguments_that_do_not_fit_are_refused(call: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        call(ScaledIdentity(3, 2.0))


def test_integers_have_no_mean_and_no_inverse_as_in_pytorch() -> None:
    for call in (torch.mean, torch.inverse, torch.linalg.vector_norm):
        with pytest.raises(RuntimeError):
            call(ScaledIdentity(3, 2))
        with pytest.raises(RuntimeError):
            call(torch.eye(3, dtype=torch.long))


def test_in_place_and_out_write_to_the_scaled_identity() -> None:
    x, out = ScaledIdentity(3, 2.0), ScaledIdentity(3, 0.0)
    alias = x
    x *= 3
    x.add_(x, alpha=2).t_()
    assert alias is x
    assert x.value.item() == 18
    assert torch.matmul(x, x, out=out) is out
    assert out.value.item() == 324
    with pytest.raises(TypeError, match=r"cannot be written to a target of torch.int64"):
        ScaledIdentity(3, 2).div_(2)


def test_dtype_and_device_are_those_given() -> None:
    assert ScaledIdentity(2, 3).dtype == torch.int64
    assert ScaledIdentity(2, 3, dtype=torch.float16).dtype == torch.float16
    assert ScaledIdentity(2, torch.tensor([3.0]), dtype=torch.float64).dtype == torch.float64
    meta = ScaledIdentity(2, 3.0, device="meta")
    assert meta.device.type == "meta"
    assert (meta @ meta).inverse().is_meta
    assert repr(meta) == "ScaledIdentity(2, ..., device='meta')"
    assert meta.to("meta") is meta
    assert ScaledIdentity(2, 3.0).double().half().dtype == torch.float16
    assert ScaledIdentity(2, 3.0).to(ScaledIdentity(2, 1, dtype=torch.float64)).dtype == torch.float64


def test_it_prints_as_it_is_written() -> None:
    assert repr(ScaledIdentity(3, 2.0)) == "ScaledIdentity(3, 2.0)"
    assert repr(ScaledIdentity(3, 2, dtype=torch.float64)) == "ScaledIdentity(3, 2.0, dtype=torch.float64)"
    assert "requires_grad=True" in repr(ScaledIdentity(3, torch.tensor(2.0, requires_grad=True)))


def test_it_is_copied_pickled_and_loaded_with_weights_only() -> None:
    x = ScaledIdentity(3, torch.tensor(2.0, requires_grad=True))
    file = io.BytesIO()
    torch.save([x], file)
    file.seek(0)
    for twin in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), torch.load(file, weights_only=True)[0]):
        assert type(twin) is ScaledIdentity
        assert torch.equal(twin, x)
        assert twin.requires_grad
        assert twin.value is not x.value


def algebra(v: Any, x: Any, t: Any) -> Any:
    s = ScaledIdentity(3, v)
    y = torch.matmul(torch.add(s, x, alpha=2), s.inverse()) * 2 - x.T
    return y @ t + torch.linalg.solve(y, t) + y.logdet() + y.norm() + y[0] + y.sum(0) + (y + t).exp()


def test_torch_compile_traces_it_in_one_graph() -> None:
    x, t = ScaledIdentity(3, 0.5), torch.rand(3, 3)
    results = []
    for f in (algebra, torch.compile(algebra, fullgraph=True, backend="aot_eager")):
        v = torch.tensor(2.0, requires_grad=True)
        result = f(v, x, t)
        result.sum().backward()
        results.append((result.detach(), v.grad))
    torch.testing.assert_close(results[0], results[1])


def test_torch_compile_leaves_the_graph_for_an_operator_it_cannot_trace() -> None:
    def product(x: Any) -> Any:
        return (x @ x) * 2  # Dynamo traces @ with a Tensor, not between two objects

    got = torch.compile(product, backend="aot_eager")(ScaledIdentity(3, 2.0))
    assert torch.equal(got, ScaledIdentity(3, 8.0))


def test_torch_compile_takes_and_returns_it() -> None:
    double = torch.compile(lambda x: x * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(double(ScaledIdentity(3, 2.0)), ScaledIdentity(3, 4.0))
