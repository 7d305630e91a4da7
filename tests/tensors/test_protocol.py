"""Several types in one call: PyTorch's order, and what happens when nobody answers."""

# mypy: disable-error-code="arg-type, attr-defined, call-overload, comparison-overlap, list-item, misc, operator"
# PyTorch's stubs know of Tensors alone.

from __future__ import annotations

from typing import Any

import pytest
import torch

from opwright.tensors import Annotated, Followed, ScaledIdentity, TensorLike
from opwright.tensors.protocol import asked
from tests.tensors.diagonal import Diagonal, Strict


class Sub(torch.Tensor):
    pass


class SubSub(Sub):
    pass


class Stranger(torch.Tensor):
    pass


def of(kind: type[torch.Tensor]) -> Any:
    return torch.ones(2, 2).as_subclass(kind)


@pytest.mark.parametrize("kind", [Sub, Annotated, Followed])
def test_subclass_with_base_gives_the_subclass(kind: type[torch.Tensor]) -> None:
    assert type(of(kind) + torch.ones(2, 2)) is kind
    assert type(torch.ones(2, 2) + of(kind)) is kind
    assert type(torch.nn.Parameter(torch.ones(2, 2)) * of(kind)) is kind


def test_subclass_with_its_own_base_class_gives_the_deeper_one() -> None:
    class Deep(Annotated):
        pass

    assert type(of(Sub) + of(SubSub)) is SubSub
    assert type(Annotated(torch.ones(2), a=1) + Deep(torch.ones(2), b=2)) is Deep


@pytest.mark.parametrize("left, right", [(Sub, Stranger), (Annotated, Followed), (Followed, Stranger)])
def test_unrelated_subclasses_raise_type_error(left: type[torch.Tensor], right: type[torch.Tensor]) -> None:
    with pytest.raises(TypeError):
        of(left) + of(right)
    with pytest.raises(TypeError, match=r"no implementation found|Multiple dispatch failed"):
        torch.add(of(left), of(right))


def test_a_tensor_like_type_takes_any_tensor_subclass() -> None:
    x = ScaledIdentity(2, 3.0)
    result = Annotated(torch.ones(2, 2), unit="m") @ x
    assert type(result) is Annotated
    assert result.metadata == {"unit": "m"}
    assert torch.equal(result.plain(), torch.full((2, 2), 3.0))


def test_the_order_is_left_to_right_but_a_subclass_before_its_base() -> None:
    values = [torch.ones(1), of(Sub), of(Stranger), of(SubSub), ScaledIdentity(2), torch.nn.Parameter(torch.ones(1))]
    assert asked(values) == (SubSub, Sub, Stranger, ScaledIdentity)


def test_the_order_is_pytorchs_own() -> None:
    values = [of(Sub), of(Stranger), of(SubSub), ScaledIdentity(2), Diagonal(torch.ones(2)), Strict(torch.ones(2))]
    for turned in (values, values[::-1], values[3:] + values[:3]):
        assert asked(turned) == tuple(type(v) for v in torch.overrides._get_overloaded_args(turned))


@pytest.mark.parametrize(
    "spell", [torch.add, lambda x, y: x + y, lambda x, y: x.add(y), lambda x, y: torch.stack([x, y])]
)
def test_a_conflict_names_both_types_and_the_way_out(spell: Any) -> None:
    with pytest.raises(TypeError) as caught:
        spell(ScaledIdentity(2), Diagonal(torch.ones(2)))
    assert "none of ScaledIdentity and Diagonal knows the others" in str(caught.value)
    assert "knows=(Diagonal,)" in str(caught.value)


@pytest.mark.parametrize("turn", [1, -1])
def test_a_type_that_knows_the_other_answers_on_either_side(turn: int) -> None:
    class Knowing(Diagonal, knows=(ScaledIdentity,)):
        pass

    @Knowing.implements(torch.add)
    def _(input: Any, other: Any, *, alpha: Any = 1) -> Any:
        if isinstance(other, ScaledIdentity):
            return Knowing(torch.add(input.values, other.value, alpha=alpha))
        if isinstance(input, ScaledIdentity):
            return Knowing(torch.add(input.value, other.values, alpha=alpha))
        return NotImplemented

    x, y = (Knowing(torch.ones(2)), ScaledIdentity(2, 5.0))[::turn]
    assert torch.equal(torch.add(x, y).dense(), torch.eye(2) * 6)
    assert torch.equal((x + y).dense(), torch.eye(2) * 6)
    assert torch.equal(torch.mul(x, y), torch.eye(2) * 5)  # both turn dense


def test_a_type_that_answers_for_a_foreign_one_may_come_last() -> None:
    class Foreign:
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return "answered"

    assert torch.add(ScaledIdentity(2), Foreign()) == "answered"  # type: ignore[call-overload]
    assert ScaledIdentity(2).add(Foreign()) == "answered"


def test_a_mode_is_asked_before_any_type() -> None:
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return "mode"

    x = ScaledIdentity(2)
    with Mode():
        answers: list[Any] = [torch.add(x, x), x + x, x.add(x), x.T]  # type: ignore[call-overload]
    assert answers == ["mode"] * 4


def test_the_base_is_not_asked_about_types_below_it() -> None:
    class Reticent(ScaledIdentity):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return NotImplemented

    with pytest.raises(TypeError, match=r"ScaledIdentity and Reticent|Reticent and ScaledIdentity"):
        torch.add(ScaledIdentity(2), Reticent(2))  # type: ignore[call-overload]


def test_tensor_like_is_the_base_of_what_ships() -> None:
    assert issubclass(ScaledIdentity, TensorLike)
