"""References that break a rule are refused at first use, with a sentence that says how to fix them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow


def returns_its_input(x: Tensor) -> Tensor:
    return x


def returns_a_view(x: Tensor) -> Tensor:
    return x[1:]


def returns_one_memory_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, y.view(-1)


def writes_to_its_input(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def draws(x: Tensor) -> Tensor:
    return x * torch.rand(())


def returns_a_number(x: Tensor) -> Tensor:
    return 3.0  # type: ignore[return-value]


def returns_too_many(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x + 2, x + 3  # type: ignore[return-value]


def returns_nothing(x: Tensor) -> Tensor:
    return None  # type: ignore[return-value]


def returns_a_result_none(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, None  # type: ignore[return-value]


BAD: list[tuple[Callable[..., Any], str]] = [
    (returns_its_input, "the reference returns x, and an operator's result is memory of its own; return a copy"),
    (returns_a_view, "the reference returns a view of x"),
    (returns_one_memory_twice, "two results of the reference share memory; return `.clone()` of one of them"),
    (writes_to_its_input, r"the reference writes to its argument 'x'; declare it with @ow.op(mutates=('x',)"),
    (draws, "the reference draws random numbers (aten.rand.default); declare it with @ow.op(random=True)"),
    (returns_a_number, "the reference returned float 3.0, its annotation promises a Tensor; let every path return"),
    (returns_too_many, "the reference returned tuple of Tensor, its annotation promises 2 results"),
    (returns_nothing, "the reference returned None, its annotation promises a Tensor"),
    (returns_a_result_none, "the reference returned None as result 1, its annotation promises a Tensor"),
]


@pytest.mark.parametrize("function, sentence", BAD, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("door", ["python", "torch.ops", "opaque"])
def test_bad_references_are_refused(function: Callable[..., Any], sentence: str, door: str) -> None:
    op = ow.op(namespace=f"bad_{door[:5]}".replace(".", "_"), opaque=door == "opaque" or None)(function)
    call = op.overload if door == "torch.ops" else op
    for _ in range(2):  # and again: a refusal is not forgotten
        with pytest.raises(TypeError) as refused:
            call(torch.ones(3))
        assert f"{function.__name__}: " in str(refused.value)
        assert sentence in str(refused.value)


def test_different_types_on_different_paths_are_noticed_when_taken() -> None:
    @ow.op
    def fickle(x: Tensor, flag: bool) -> Tensor:
        return x + 1 if flag else [x]  # type: ignore[return-value]

    fickle(torch.ones(1), True)
    with pytest.raises(TypeError, match="fickle: the reference returned list of Tensor, its annotation"):
        fickle(torch.ones(1), False)


def test_an_input_returned_on_a_later_path_is_noticed_by_the_dispatcher() -> None:
    @ow.op
    def lazy(x: Tensor, a: float) -> Tensor:
        return x if a == 1 else x * a

    lazy(torch.ones(1), 2.0)
    with pytest.raises(ow.BadReference, match="lazy: the reference returns x"):
        torch.ops.tests.lazy(torch.ones(1), 1.0)
    with pytest.raises(ow.BadReference, match="lazy: the reference returns x"):
        lazy(torch.ones(1), 1.0)


def test_a_probe_under_a_transform_waits_for_a_plain_call() -> None:
    op = ow.op(namespace="probed")(writes_to_its_input)
    torch.func.vmap(lambda t: op(t * 1))(torch.ones(2, 3))
    with pytest.raises(ow.BadReference, match="writes to its argument"):
        op(torch.ones(3))


def test_good_references_pass_and_are_asked_once() -> None:
    op = ow.op(namespace="probed")(lambda_like)
    op(torch.ones(3))
    assert op(torch.ones(0)).shape == (0,)


def lambda_like(x: Tensor) -> Tensor:
    return x.flatten() * 2


def test_attention_without_dropout_draws_nothing() -> None:
    @ow.op
    def probed_attention(q: Tensor, k: Tensor, v: Tensor, p: float = 0.0) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=p)

    x = torch.randn(1, 2, 4, 8)
    expected = torch.nn.functional.scaled_dot_product_attention(x, x, x)
    torch.testing.assert_close(probed_attention.overload(x, x, x), expected)
    torch.testing.assert_close(probed_attention(x, x, x), expected)

    @ow.op
    def probed_dropout(q: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    with pytest.raises(TypeError, match="the reference draws random numbers"):
        probed_dropout(x)

    @ow.op
    def probed_rrelu(x: Tensor) -> Tensor:
        return torch.nn.functional.rrelu(x, training=False)

    assert torch.equal(probed_rrelu(x), torch.nn.functional.rrelu(x))
