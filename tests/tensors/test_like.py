"""A tensor-like type in every spelling, and in everything Python and PyTorch do with tensors."""

# mypy: disable-error-code="arg-type, attr-defined, call-overload, comparison-overlap, list-item, misc, operator"
# PyTorch's stubs know of Tensors alone.

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from opwright.tensors import TensorLike
from tests.tensors.diagonal import Diagonal, Strict, diagonal

X, Y = diagonal(1.0, 2.0), diagonal(3.0, 5.0)
SUM = torch.diag(torch.tensor([4.0, 7.0]))


@pytest.mark.parametrize(
    "spelled",
    [
        lambda x, y: torch.add(x, y),
        lambda x, y: torch.add(input=x, other=y),
        lambda x, y: torch.add(other=y, input=x),
        lambda x, y: x.add(y),
        lambda x, y: x.add(other=y),
        lambda x, y: x + y,
        lambda x, y: x.__iadd__(y),
        lambda x, y: x.add_(y),
        lambda x, y: torch.add(x, y, out=diagonal(0.0, 0.0)),
        lambda x, y: torch.ops.aten.add(x, y),
        lambda x, y: torch.ops.aten.add.Tensor(x, y),
        lambda x, y: torch.add(x, y, alpha=1),
    ],
)
def test_one_override_serves_every_spelling(spelled: Callable[[Any, Any], Any]) -> None:
    got = spelled(copy.copy(X), Y)
    assert type(got) is Diagonal
    assert torch.equal(got.dense(), SUM)


@pytest.mark.parametrize("alias", [torch.sub, torch.subtract])
def test_pytorchs_aliases_are_served_too(alias: Callable[..., Any]) -> None:
    assert torch.equal(alias(X, Y, alpha=2).values, torch.tensor([-5.0, -8.0]))


def test_keywords_reach_the_override_in_every_spelling() -> None:
    expected = torch.tensor([7.0, 12.0])
    assert torch.equal(torch.add(X, Y, alpha=2).values, expected)
    assert torch.equal(X.add(Y, alpha=2).values, expected)
    assert torch.equal(copy.copy(X).add_(Y, alpha=2).values, expected)


def test_out_takes_a_tensor_of_the_shape_an_empty_one_or_one_of_the_type() -> None:
    full, empty, like = torch.zeros(2, 2), torch.empty(0), diagonal(0.0, 0.0)
    for out in (full, empty, like):
        assert torch.add(X, Y, out=out) is out
        assert torch.equal(out.dense() if isinstance(out, Diagonal) else out, SUM)


def test_out_of_another_shape_or_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match=r"torch.add: the result has shape \(2, 2\) and the target \(3,\)"):
        torch.add(X, Y, out=torch.zeros(3))
    with pytest.raises(TypeError, match=r"cannot be written to a target of torch.int64"):
        torch.add(X, Y, out=torch.zeros(2, 2, dtype=torch.long))


def test_in_place_changes_the_object_itself() -> None:
    x = copy.copy(X)
    alias = x
    x += Y
    assert alias is x
    assert torch.equal(alias.dense(), SUM)


def test_a_dense_tensor_is_written_in_place() -> None:
    t = torch.ones(2, 2)
    t += X
    assert torch.equal(t, torch.ones(2, 2) + X.dense())


def test_in_place_with_a_result_that_does_not_fit_is_refused() -> None:
    with pytest.raises(TypeError, match=r"add_: would write to a Diagonal, whose dense form is a copy"):
        copy.copy(X).add_(torch.ones(2, 2))


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + 1,
        lambda x: 1 + x,
        lambda x: 1 - x,
        lambda x: x * torch.ones(2, 2),
        lambda x: torch.ones(2, 2) * x,
        lambda x: x @ x,
        lambda x: torch.ones(2, 2) @ x,
        lambda x: 2 ** (x + 1),
        lambda x: -x,
        lambda x: abs(x),
        lambda x: x == x,
        lambda x: x < 2,
        lambda x: x[0],
        lambda x: x[:, 1],
        lambda x: x.T,
        lambda x: x.exp(),
        lambda x: torch.stack([x, x]),
        lambda x: torch.cat([x, torch.ones(2, 2)]),
        lambda x: torch.cat(tensors=[x, x], dim=1),
        lambda x: torch.nn.functional.relu(x),
        lambda x: torch.einsum("ij,jk->ik", x, x),
        lambda x: torch.linalg.inv(x),
        lambda x: torch.where(torch.eye(2, dtype=torch.bool), x, torch.zeros(2, 2)),
        lambda x: next(iter(x)),
        lambda x: reversed(x),
        lambda x: 7 // (x + 1),
        lambda x: 7 % (x + 1),
        lambda x: 7 / (x + 1),
    ],
)
def test_the_dense_fallback_gives_what_the_dense_tensor_gives(operation: Callable[[Any], Any]) -> None:
    assert torch.equal(operation(X), operation(X.dense()))


def test_python_protocols_follow_the_dense_tensor() -> None:
    import numpy as np

    one = diagonal(3.0)
    assert (float(one), int(one), complex(one), bool(one)) == (3.0, 3, 3 + 0j, True)
    assert len(X) == 2
    assert 2.0 in X
    assert np.asarray(X).tolist() == [[1.0, 0.0], [0.0, 2.0]]
    assert {X: 1}[X] == 1
    assert torch.equal(np.float32(2) * X, 2 * X.dense())
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(X)


def test_questions_about_the_form_never_convert() -> None:
    huge = Diagonal(torch.ones(1).expand(10**6))
    assert (huge.dim(), huge.ndim, huge.numel(), huge.size(0), torch.numel(huge)) == (2, 2, 10**12, 10**6, 10**12)
    assert torch.is_floating_point(huge)
    assert not torch.is_complex(huge)
    assert huge.is_cpu
    assert not huge.is_cuda


def test_it_is_tensor_like_but_no_tensor() -> None:
    assert isinstance(X, TensorLike)
    assert torch.overrides.is_tensor_like(X)
    assert not isinstance(X, torch.Tensor)
    assert not torch.is_tensor(X)


def test_what_a_tensor_has_for_its_memory_it_does_not_have() -> None:
    for name in ("grad", "data_ptr", "grad_fn", "storage", "backward", "no_such_thing", "_private"):
        assert not hasattr(X, name)


def test_a_type_without_a_shape_says_so() -> None:
    class Bare(TensorLike):
        pass

    with pytest.raises(AttributeError, match="Bare: a tensor-like type sets shape"):
        Bare().dim()


def test_it_is_copied_pickled_saved_and_printed() -> None:
    copied = copy.deepcopy(X)
    assert copied.values is not X.values
    file = io.BytesIO()
    torch.save({"x": X}, file)
    file.seek(0)
    with torch.serialization.safe_globals([Diagonal]):
        loaded = torch.load(file)["x"]
    for twin in (copied, copy.copy(X), pickle.loads(pickle.dumps(X)), loaded):
        assert type(twin) is Diagonal
        assert torch.equal(twin.values, X.values)
    assert repr(X) == "Diagonal(shape=(2, 2), dtype=float32, device=cpu)"


def test_gradients_reach_what_it_is_made_of_through_override_and_fallback() -> None:
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    x = Diagonal(values)
    (torch.add(x, x, alpha=2).trace() + x.exp().sum()).backward()
    assert values.grad is not None
    assert torch.allclose(values.grad, 3 + values.detach().exp())


def collate(batch: list[Any]) -> Any:
    return default_collate([x.dense() for x in batch])


def test_a_dataloader_hands_it_on() -> None:
    loader: Any = DataLoader([X, Y], batch_size=2, collate_fn=collate)
    assert next(iter(loader)).shape == (2, 2, 2)
    assert [type(x) for x in DataLoader([X, Y], batch_size=None)] == [Diagonal, Diagonal]


@pytest.mark.parametrize("kind", [Diagonal, Strict])
def test_torch_compile_traces_overrides_in_one_graph(kind: type[Diagonal]) -> None:
    def f(values: Any, x: Any) -> Any:
        made = kind(values)
        return (x + made).trace() * torch.add(x, made, alpha=2).values

    values = torch.tensor([1.0, 2.0], requires_grad=True)
    x = kind(torch.tensor([3.0, 5.0]))
    got = torch.compile(f, fullgraph=True, backend="aot_eager")(values, x)
    assert torch.allclose(got, f(values, x))
    (gradient,) = torch.autograd.grad(got.sum(), values)
    (expected,) = torch.autograd.grad(f(values, x).sum(), values)
    assert torch.allclose(gradient, expected)


def test_torch_compile_traces_the_dense_fallback() -> None:
    got = torch.compile(lambda x: torch.exp(x) + x, fullgraph=True, backend="aot_eager")(X)
    assert torch.equal(got, X.dense().exp() + X.dense())


def test_a_subclass_inherits_overrides_and_may_replace_them() -> None:
    class Halved(Diagonal):
        pass

    assert torch.trace(Halved(torch.ones(2))) == 2

    @Halved.implements(torch.trace)
    def _(input: Halved) -> torch.Tensor:
        return input.values.sum() / 2

    assert torch.trace(Halved(torch.ones(2))) == 1
    assert torch.trace(diagonal(1.0, 1.0)) == 2


def test_an_override_added_to_the_base_later_reaches_the_subclass() -> None:
    class Base(Diagonal):
        pass

    class Sub(Base):
        pass

    @Base.implements(torch.det)
    def _(input: Base) -> torch.Tensor:
        return input.values.prod()

    assert Sub.override_of(torch.linalg.det) is not None
    assert Diagonal.override_of(torch.det) is None
    assert torch.det(Sub(torch.tensor([2.0, 3.0]))) == 6


def test_a_subclass_keeps_its_type_through_inherited_overrides() -> None:
    assert type(Strict(torch.ones(2)) + Strict(torch.ones(2))) is Strict
