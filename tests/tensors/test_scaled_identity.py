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
from tests.tensors.identity_cases import (
    ALL,
    ARITHMETIC,
    COMPLEX,
    INTEGERS,
    LAPACK,
    NORMS,
    PRODUCTS,
    REAL_ALGEBRA,
    ROUNDING,
    Case,
    agree,
    fill,
    pair,
)

sizes = st.integers(1, 5)
values = st.floats(0.25, 3.0).map(lambda v: round(v * 16) / 16) | st.floats(-3.0, -0.25).map(
    lambda v: round(v * 16) / 16
)


def compare(name: str, dtype: torch.dtype, n: int, value: float) -> None:
    x, dense = pair(dtype, n, value)

    def make(*shape: int) -> Tensor:
        return fill(dtype, *shape)

    try:
        expected = ALL[name](dense, make)
    except NotImplementedError:
        if name == "trace" and dtype in (torch.float16, torch.bfloat16):
            return  # torch 2.10 has none to compare with
        raise
    agree(ALL[name](x, make), expected)


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


def test_linear_multiplies_by_the_transposed_weight() -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    identity = ScaledIdentity(3, 2.0)
    expected = torch.nn.functional.linear(identity.dense(), weight, torch.ones(2))
    torch.testing.assert_close(torch.nn.functional.linear(identity, weight, torch.ones(2)), expected)
