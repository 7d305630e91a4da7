"""Overrides that are wrong, each caught with a sentence that says how to fix it."""

# mypy: disable-error-code="arg-type, attr-defined, call-overload, comparison-overlap, list-item, misc, operator"
# PyTorch's stubs know of Tensors alone.

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.tensors.diagonal import Diagonal


@pytest.fixture
def kind() -> type[Diagonal]:
    class Mine(Diagonal):
        pass

    return Mine


def test_a_missing_keyword_is_an_error_at_registration_that_names_it(kind: type[Diagonal]) -> None:
    with pytest.raises(TypeError) as caught:

        @kind.implements(torch.add)
        def add(input: Any, other: Any) -> Any: ...

    assert str(caught.value) == (
        "implements: the override of torch.add for Mine does not take alpha; write def add(input, other, *, alpha=1): "
        "(in-place and out= forms need nothing more)"
    )
    assert torch.add not in kind._own


def test_several_missing_keywords_are_all_named(kind: type[Diagonal]) -> None:
    with pytest.raises(TypeError, match="does not take keepdim and dtype"):

        @kind.implements(torch.sum)
        def _(input: Any, dim: Any = None) -> Any: ...


def test_a_keyword_under_another_name_is_missing(kind: type[Diagonal]) -> None:
    with pytest.raises(TypeError, match="does not take other"):

        @kind.implements(torch.mul)
        def _(input: Any, right: Any) -> Any: ...


def test_a_place_that_pytorch_fills_otherwise_is_named(kind: type[Diagonal]) -> None:
    with pytest.raises(TypeError, match=r"has keepdim in place 2, where torch.sum has dim"):

        @kind.implements(torch.sum)
        def _(input: Any, keepdim: bool = False, dim: Any = None, *, dtype: Any = None) -> Any: ...


def test_an_argument_that_pytorch_takes_by_place_must_be_taken_by_place(kind: type[Diagonal]) -> None:
    with pytest.raises(TypeError, match="does not take dim1 by place"):

        @kind.implements(torch.transpose)
        def _(input: Any, dim0: int, *, dim1: int) -> Any: ...


def test_a_demand_that_pytorch_does_not_make_is_refused(kind: type[Diagonal]) -> None:
    with pytest.raises(TypeError, match=r"needs a default for alpha, which torch.add does not demand"):

        @kind.implements(torch.add)
        def _(input: Any, other: Any, *, alpha: Any) -> Any: ...


def test_another_default_is_refused(kind: type[Diagonal]) -> None:
    with pytest.raises(TypeError, match=r"has the default alpha=2, where torch.add has alpha=1"):

        @kind.implements(torch.add)
        def _(input: Any, other: Any, *, alpha: Any = 2) -> Any: ...


def test_functions_written_in_python_are_compared_too(kind: type[Diagonal]) -> None:
    with pytest.raises(TypeError, match="does not take dim, _stacklevel and dtype"):

        @kind.implements(torch.nn.functional.softmax)
        def _(input: Any) -> Any: ...


def test_an_override_may_take_anything(kind: type[Diagonal]) -> None:
    @kind.implements(torch.add, torch.sum)
    def _(*args: Any, **kwargs: Any) -> Any:
        return torch.tensor(float(len(args) + len(kwargs)))

    x = kind(torch.ones(2))
    assert torch.add(x, 1, alpha=2) == 3
    assert x.sum(0) == 2


def test_an_override_may_take_out_itself(kind: type[Diagonal]) -> None:
    @kind.implements(torch.trace)
    def _(input: Any, out: Any = None) -> Any:
        return out

    marker = torch.ones(1)
    assert kind.__torch_function__(torch.trace, (kind,), (kind(torch.ones(2)),), {"out": marker}) is marker


def test_recursion_on_the_same_arguments_is_caught_at_once(kind: type[Diagonal]) -> None:
    calls = 0

    @kind.implements(torch.mul)
    def _(input: Any, other: Any) -> Any:
        nonlocal calls
        calls += 1
        return torch.mul(input, other)

    with pytest.raises(RecursionError) as caught:
        kind(torch.ones(2)) * 2
    assert str(caught.value) == (
        "torch.mul: the override for Mine calls torch.mul on the same arguments and would never end; compute on the "
        "tensors inside its arguments or on .dense(), or return NotImplemented for the fallback"
    )
    assert calls == 1


def test_recursion_on_fresh_arguments_is_caught(kind: type[Diagonal]) -> None:
    @kind.implements(torch.neg)
    def _(input: Any) -> Any:
        return -type(input)(input.values)

    with pytest.raises(RecursionError, match=r"torch.neg: the override for Mine calls torch.neg 100 times over"):
        -kind(torch.ones(2))


def test_mutual_recursion_is_caught(kind: type[Diagonal]) -> None:
    @kind.implements(torch.exp)
    def _(input: Any) -> Any:
        return torch.log(input)

    @kind.implements(torch.log)
    def _(input: Any) -> Any:
        return torch.exp(input)

    with pytest.raises(RecursionError, match="on the same arguments"):
        torch.exp(kind(torch.ones(2)))


def test_recursion_over_a_nested_structure_is_fine(kind: type[Diagonal]) -> None:
    class Block(kind):  # type: ignore[misc,valid-type]
        def __init__(self, inner: Any) -> None:
            super().__init__(torch.ones(1))
            self.inner = inner

    Block.implements(torch.trace)(lambda input: torch.trace(input.inner))

    x: Any = torch.eye(3)
    for _ in range(20):
        x = Block(x)
    assert torch.trace(x) == 3


def test_after_a_caught_recursion_the_type_works_again(kind: type[Diagonal]) -> None:
    @kind.implements(torch.mul)
    def _(input: Any, other: Any) -> Any:
        return torch.mul(input, other) if other == 2 else torch.ones(1)

    x = kind(torch.ones(2))
    with pytest.raises(RecursionError):
        x * 2
    assert x * 3 == 1


@pytest.mark.parametrize(
    "function, result, got, expected",
    [
        (torch.trace, None, r"NoneType \(is its return missing\?\)", "a Tensor"),
        (torch.trace, 3.0, "float", "a Tensor"),
        (torch.equal, torch.ones(1), "Tensor", "a bool"),
        (torch.frexp, torch.ones(1), "Tensor", r"a tuple of 2 \(Tensor, Tensor\)"),
        (torch.unbind, torch.ones(1), "Tensor", "a list of Tensors"),
    ],
)
def test_a_wrong_type_is_caught_and_the_right_one_named(
    kind: type[Diagonal], function: Any, result: Any, got: str, expected: str
) -> None:
    kind.implements(function)(lambda *args, **kwargs: result)
    x = kind(torch.ones(2))
    sentence = f"the override for Mine returned {got}, where PyTorch returns {expected}; return that or a tensor-like"
    with pytest.raises(TypeError, match=sentence):
        function(x, x) if function is torch.equal else function(x)


def test_a_tensor_like_result_is_as_good_as_a_tensor(kind: type[Diagonal]) -> None:
    kind.implements(torch.exp)(lambda input: input)
    x = kind(torch.ones(2))
    assert torch.exp(x) is x


def test_what_pytorch_never_asks_about_cannot_be_implemented(kind: type[Diagonal]) -> None:
    with pytest.raises(TypeError, match=r"PyTorch asks no type about torch.zeros"):
        kind.implements(torch.zeros)


def test_forgotten_parentheses_are_noticed(kind: type[Diagonal]) -> None:
    def exp(input: Any) -> Any: ...

    with pytest.raises(TypeError, match=r"exp is no torch function; write @Mine.implements\(torch.add\) above"):
        kind.implements(exp)
    with pytest.raises(TypeError, match="needs a torch function, as in"):
        kind.implements()
    with pytest.raises(TypeError, match="for a property pass its __get__"):
        kind.implements(torch.Tensor.T)  # type: ignore[arg-type]


def test_a_function_of_ones_own_that_asks_types_can_be_implemented(kind: type[Diagonal]) -> None:
    @torch.overrides.wrap_torch_function(lambda x, scale=1: (x,))
    def energy(x: Any, scale: float = 1) -> Any:
        return scale * (x**2).sum()

    with pytest.raises(TypeError, match="does not take scale"):
        kind.implements(energy)(lambda x: x)

    @kind.implements(energy)
    def _(x: Any, scale: float = 1) -> Any:
        return scale * (x.values**2).sum()

    assert energy(kind(torch.ones(2)), scale=3) == energy(torch.eye(2), scale=3)
