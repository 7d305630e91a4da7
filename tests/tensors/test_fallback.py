"""The two fallbacks, their warning, their limits."""

# mypy: disable-error-code="arg-type, attr-defined, call-overload, comparison-overlap, list-item, misc, operator"
# PyTorch's stubs know of Tensors alone.

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from opwright.tensors import DenseWarning, TensorLike
from tests.tensors.diagonal import Diagonal, Strict, diagonal


class Warned(Diagonal, warn=True):
    pass


def test_error_names_the_function_and_the_type_and_the_ways_out() -> None:
    with pytest.raises(TypeError) as caught:
        torch.exp(Strict(torch.ones(2)))
    assert str(caught.value) == (
        "torch.exp: the override for Strict is missing; write @Strict.implements(torch.exp), or choose "
        "fallback='dense', or call it on .dense()"
    )


def test_error_names_the_arguments_that_an_override_declined() -> None:
    with pytest.raises(TypeError, match=r"torch.add: the override for Strict does not take \(Strict, int\)"):
        torch.add(Strict(torch.ones(2)), 1)


def test_error_tells_a_property_by_its_getter() -> None:
    with pytest.raises(TypeError, match=r"implements\(torch.Tensor.T.__get__\)"):
        _ = Strict(torch.ones(2)).T


def test_the_warning_comes_once_for_each_place_and_names_it() -> None:
    x = Warned(torch.ones(2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.exp(x)
        x.exp()
    assert [w.category for w in caught] == [DenseWarning] * 2
    assert [w.filename for w in caught] == [__file__] * 2
    assert f"torch.exp: Warned turns dense at {__file__}:" in str(caught[0].message)


def test_overrides_never_warn() -> None:
    x = Warned(torch.ones(2))
    assert torch.trace(x + x) == 4


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.exp_(),
        lambda x: x.__setitem__(0, 1.0),
        lambda x: torch.exp(torch.ones(2, 2), out=x),
        lambda x: torch.nn.functional.relu(x, inplace=True),
        lambda x: torch.nn.functional.relu(x, True),
        lambda x: torch.nn.init.zeros_(x),
        lambda x: x.fill_(0),
        lambda x: x.__imod__(2),
        lambda x: torch._foreach_exp_([torch.ones(2), x]),
    ],
)
def test_a_write_is_never_lost_in_a_copy(write: Callable[[Any], Any]) -> None:
    x = diagonal(1.0, 2.0)
    with pytest.raises(TypeError, match="would write to a Diagonal, whose dense form is a copy"):
        write(x)
    assert torch.equal(x.values, torch.tensor([1.0, 2.0]))


def test_a_dense_form_beyond_the_limit_is_refused_before_it_is_made() -> None:
    class Small(Diagonal, dense_limit=1000):
        def dense(self) -> torch.Tensor:
            assert len(self.values) < 10
            return super().dense()

    assert torch.exp(Small(torch.ones(9))).shape == (9, 9)
    with pytest.raises(ValueError, match=r"torch.exp: a dense Small of shape \(100, 100\) would need 40.0 KB"):
        torch.exp(Small(torch.ones(100)))


def test_a_result_beyond_the_limit_is_refused_before_it_is_made() -> None:
    x = Diagonal(torch.ones(4000))
    with pytest.raises(ValueError, match=r"torch.kron: its dense result of shape \(16000000, 16000000\) would need"):
        torch.kron(x, x)


def test_knows_takes_a_type_or_several_and_nothing_else() -> None:
    class One(Diagonal, knows=Diagonal):
        pass

    assert One.knows == (Diagonal,)
    with pytest.raises(TypeError, match=r"Odd: knows must be types, got \(3,\)"):

        class Odd(Diagonal, knows=(3,)):  # type: ignore[arg-type]
            pass


def test_dense_must_return_a_tensor_of_the_shape_promised() -> None:
    class Wrong(Diagonal):
        def dense(self) -> torch.Tensor:
            return self.values

    with pytest.raises(
        TypeError, match=r"Wrong.dense must return a Tensor of its own shape \(2, 2\), got shape \(2,\)"
    ):
        torch.exp(Wrong(torch.ones(2)))


def test_choosing_dense_without_a_dense_form_is_an_error_at_the_class() -> None:
    with pytest.raises(TypeError, match="Formless: fallback='dense' needs a method dense"):

        class Formless(TensorLike, fallback="dense"):
            pass


def test_an_unknown_fallback_is_an_error_at_the_class() -> None:
    with pytest.raises(ValueError, match="fallback must be 'dense' or 'error', got 'sparse'"):

        class Odd(TensorLike, fallback="sparse"):  # type: ignore[arg-type]
            pass


def test_memory_questions_through_torch_are_refused() -> None:
    with pytest.raises(TypeError, match="has no memory or history of its own"):
        Diagonal.__torch_function__(torch.Tensor.data_ptr, (Diagonal,), (diagonal(1.0),))
