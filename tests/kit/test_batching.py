"""vmap of operators whose author declares that leading dimensions are a batch: one call, kernel and all."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import opwright as ow
from opwright.kit.dispatch import native

Shapes = list[tuple[int, ...]]
counter = itertools.count()
X, Y = torch.linspace(-1, 1, 60).reshape(5, 3, 4), torch.linspace(-2, 1, 20).reshape(5, 4)


def plain(x: Tensor, y: Tensor) -> Tensor:
    return x.sin() * y


def define(vmap: Any = "leading", function: Callable[..., Any] = plain) -> tuple[ow.Op[..., Any], Shapes]:
    """An operator with a kernel, and the shapes of the first argument that the kernel saw."""
    op = ow.op(namespace=f"batching_{next(counter)}", vmap=vmap)(function)
    seen: Shapes = []

    @op.kernel("cpu")
    def _(x: Tensor, y: Tensor) -> Any:
        seen.append(tuple(x.shape))
        return function(x, y)

    return op, seen


@pytest.mark.parametrize(
    ("dims", "given", "shape"),
    [
        ((0, 0), (X, Y), (5, 3, 4)),
        ((0, None), (X, Y[0]), (5, 3, 4)),
        ((None, 0), (X[0], Y), (5, 3, 4)),
        ((2, 1), (X, X[0]), (4, 5, 3)),
        ((0, 0), (Y, X), (5, 1, 4)),
        ((0, 0), (X, X[:, 0, 0]), (5, 3, 4)),
    ],
)
def test_vmap_is_one_call_of_the_kernel(dims: Any, given: tuple[Tensor, Tensor], shape: tuple[int, ...]) -> None:
    op, seen = define()
    for _ in range(2):
        assert torch.equal(vmap(op, dims)(*given), vmap(plain, dims)(*given))
    assert seen == [shape] * 2


def test_vmaps_nest() -> None:
    op, seen = define()
    got = vmap(vmap(op, (0, None)))(X, Y)
    assert torch.equal(got, vmap(vmap(plain, (0, None)))(X, Y))
    assert seen == [(5, 3, 4)]


def loss(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, y: function(x, y).pow(2).sum()


TRANSFORMS: dict[str, Callable[[Callable[..., Tensor]], Any]] = {
    "vmap of grad": lambda f: vmap(grad(loss(f), (0, 1)))(X, Y),
    "vmap of grad, one batched": lambda f: vmap(grad(loss(f), (0, 1)), (0, None))(X, Y[0]),
    "grad of vmap": lambda f: grad(loss(vmap(f)), (0, 1))(X, Y),
    "grad of vmap, one batched": lambda f: grad(loss(vmap(f, (0, None))), (0, 1))(X, Y[0]),
    "grad of vmap of grad": lambda f: grad(lambda x: vmap(grad(loss(f)))(x, Y).sum())(X),
    "hessian": lambda f: hessian(loss(f))(X[0], Y[0]),
    "jacrev": lambda f: jacrev(f)(X[0], Y[0]),
    "jacfwd": lambda f: jacfwd(f)(X[0], Y[0]),
    "jvp of vmap": lambda f: torch.func.jvp(vmap(f), (X, Y), (X.cos(), Y.cos())),
    "vmap of jvp": lambda f: vmap(lambda x, y: torch.func.jvp(f, (x, y), (x.cos(), y.cos())))(X, Y),
}


@pytest.mark.parametrize("how", TRANSFORMS)
@pytest.mark.parametrize("warm", [True, False])
def test_gradients_and_vmap_in_any_order(how: str, warm: bool) -> None:
    op, seen = define()
    if warm:  # at its first call C++ takes over
        op(X.clone().requires_grad_(), Y[0])
        seen.clear()
    torch.testing.assert_close(TRANSFORMS[how](op), TRANSFORMS[how](plain))
    if how.startswith("grad of vmap, one") and warm and native.available() is None:
        assert seen == [(5, 3, 4)]


def test_autograd_goes_through_vmap() -> None:
    op, seen = define()
    got, expected = (X.clone().requires_grad_() for _ in range(2))
    vmap(op)(got, Y).sum().backward()
    vmap(plain)(expected, Y).sum().backward()
    torch.testing.assert_close(got.grad, expected.grad)
    assert seen == [(5, 3, 4)]


@pytest.mark.parametrize("dynamic", [False, True])
def test_graphs_hold_one_call(dynamic: bool) -> None:
    op, seen = define()
    compiled = torch.compile(vmap(op, (0, None)), backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for count in (3, 4):
        assert torch.equal(compiled(X[:count], Y[0]), vmap(plain, (0, None))(X[:count], Y[0]))
    assert seen == [(3, 3, 4), (4, 3, 4)]


@pytest.mark.parametrize("declared", ["leading", None])
@pytest.mark.parametrize("strict", [False, True])
def test_programs_are_exported(declared: Any, strict: bool) -> None:
    op, _ = define(declared)

    class Batched(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            out: Tensor = vmap(op)(x, y)
            return out

    program = torch.export.export(Batched(), (X, Y), strict=strict)
    assert torch.equal(program.module()(X, Y), vmap(plain)(X, Y))


def test_a_number_in_a_tensor_changes_no_dtype() -> None:
    """Without dimensions it counts less than the other, and with a batch it would not."""
    op, seen = define()
    numbers = torch.ones(5, dtype=torch.float64)
    assert torch.equal(vmap(op)(X, numbers), vmap(plain)(X, numbers))
    assert vmap(op)(X, numbers).dtype == torch.float32
    assert not seen


def test_only_what_is_named_gets_a_batch() -> None:
    def product(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, y)

    op, seen = define(("x",), product)
    weight = torch.randn(6, 4)
    for x in (X, Y):  # whatever its rank beside the weight's
        assert torch.equal(vmap(op, (0, None))(x, weight), vmap(product, (0, None))(x, weight))
    assert seen == [(5, 3, 4), (5, 4)]
    weights = torch.randn(5, 6, 4)
    torch.testing.assert_close(vmap(op)(X, weights), vmap(product)(X, weights))
    assert len(seen) == 2


def test_results_without_the_batch_are_refused() -> None:
    def total(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum(0)

    op, _ = define("leading", total)
    with pytest.raises(ValueError, match=r"total: vmap='leading' promises .* 5 rows gave a result of shape \(3, 4\)"):
        vmap(op)(X, X)


def test_every_result_gets_the_batch() -> None:
    """Though one follows from a tensor that has none, of which the first dimension is as large."""

    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, y * 2

    op, _ = define("leading", both)
    got = vmap(op, (0, None))(torch.ones(5, 5), torch.arange(5.0))
    assert torch.equal(got[1], (torch.arange(5.0) * 2).expand(5, 5))


def test_what_cannot_be_declared_is_said() -> None:
    with pytest.raises(TypeError, match=r"plain: vmap is 'leading' or some of its tensors \(x, y\), got 'rows'"):
        define("rows")
    with pytest.raises(TypeError, match=r"got \('z',\)"):
        define(("z",))
    with pytest.raises(TypeError, match="draws or writes"):
        ow.op(vmap="leading", random=True)(plain)

    def listed(x: list[Tensor]) -> Tensor:
        return x[0] + 1

    with pytest.raises(TypeError, match="the tensors of 'x' do not broadcast"):
        ow.op(vmap="leading")(listed)
