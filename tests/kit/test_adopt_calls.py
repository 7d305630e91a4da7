"""How what was adopted is called: which arguments by name, and what is refused before there is an operator."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow


def leaky(x: Tensor, bias: Tensor | None = None, *, slope: float = 0.5) -> Tensor:
    y = x if bias is None else x + bias
    return torch.where(y > 0, y, slope * y)


def leaky_positional(x: Tensor, bias: Tensor | None = None, slope: float = 0.5) -> Tensor:
    return leaky(x, bias, slope=slope)


@torch.library.custom_op("adopt_calls::leaky", mutates_args=())
def leaky_op(x: Tensor, bias: Tensor | None = None, *, slope: float = 0.5) -> Tensor:
    return leaky(x, bias, slope=slope)


@leaky_op.register_fake
def _(x: Tensor, bias: Tensor | None = None, *, slope: float = 0.5) -> Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Tensor) -> None:
    x, bias = inputs
    ctx.save_for_backward(x if bias is None else x + bias)
    ctx.biased, ctx.slope = bias is not None, keyword_only_inputs["slope"]


def _back(ctx: Any, grad: Tensor) -> Any:
    (y,) = ctx.saved_tensors
    found = torch.where(y > 0, grad, ctx.slope * grad)
    return found, found if ctx.biased else None


leaky_op.register_autograd(_back, setup_context=_setup)


def pair_forward(x: Tensor, bias: Tensor | None, *, slope: float) -> list[Tensor]:
    y = x if bias is None else x + bias
    return [leaky(y, slope=slope), y]


def pair_backward(grad: Tensor, y: Tensor, slope: float) -> Any:
    found = torch.where(y > 0, grad, slope * grad)
    return found, found


PAIR = {"backward": pair_backward, "saves": ["y"], "takes": ["grad", "y", "slope"]}


@pytest.mark.parametrize("reference", [leaky, leaky_positional])
@pytest.mark.parametrize(
    ("what", "more"),
    [
        (leaky_op, {}),
        (torch.ops.adopt_calls.leaky, {}),
        (torch.ops.adopt_calls.leaky.default, {}),
        (lambda x, bias, *, slope: leaky(x, bias, slope=slope), {}),
        (pair_forward, PAIR),
    ],
    ids=["custom_op", "packet", "overload", "function", "pair"],
)
def test_what_is_taken_by_name_alone_is_given_by_name(what: Any, more: Any, reference: Any) -> None:
    op = ow.adopt(what, reference=reference, name="adopt_calls_leaky", **more)
    x, bias = (torch.randn(4, requires_grad=True) for _ in range(2))
    for given in ((x, bias), (x,)):
        assert ow.explain(op, *given, slope=0.1).runs != "reference"
        got, right = (torch.autograd.grad(f(*given, slope=0.1).sum(), given) for f in (op, reference))
        assert all(torch.equal(a, b) for a, b in zip(got, right, strict=True))
        with torch.no_grad():
            assert torch.equal(op(*given, slope=0.1), reference(*given, slope=0.1))


def test_an_operator_of_custom_op_is_called_by_its_name_in_what_is_explained() -> None:
    op = ow.adopt(leaky_op, reference=leaky, name="adopt_calls_named")
    assert ow.explain(op, torch.ones(2)).runs == "adopt_calls::leaky"


class TopTwo(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, k: int) -> Any:
        return x.topk(k).values

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...


class WithContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int) -> Any:
        return x.topk(k).values


def doubled(x: Tensor) -> Tensor:
    return 2 * x


@pytest.mark.parametrize(
    ("what", "name", "said"),
    [
        (
            TopTwo,
            "adopt_calls_a",
            "must take its reference's parameters, (x), and TopTwo takes (x: 'Tensor', k: 'int')",
        ),
        (WithContext, "adopt_calls_b", "and WithContext takes (ctx: 'Any', x: 'Tensor', k: 'int')"),
        (lambda: 3, "adopt_calls_c", "takes () (too many positional arguments)"),
        (doubled, "doubled_", "an operator whose name ends in _ writes to its first argument"),
    ],
)
def test_what_cannot_be_called_so_is_refused_and_no_operator_is_left(what: Any, name: str, said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        ow.adopt(what, reference=doubled, name=name)
    assert not hasattr(torch.ops.user, name)


def test_an_instance_of_a_function_is_no_function() -> None:
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        instance = TopTwo()  # type: ignore[no-untyped-call]
    with pytest.raises(TypeError, match=r"must be a function, a torch\.autograd\.Function or an operator"):
        ow.adopt(instance, reference=doubled)


class Writes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return x.mul_(2).clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return 2 * grad


@pytest.mark.parametrize(
    ("what", "more"),
    [(Writes, {}), (lambda x: x.mul_(2).clone(), {"backward": lambda grad, x: 2 * grad})],
    ids=["Function", "pair"],
)
@pytest.mark.parametrize("recorded", [False, True])
def test_what_writes_to_its_argument_without_a_word_is_an_error(what: Any, more: Any, recorded: bool) -> None:
    op = ow.adopt(what, reference=doubled, name="adopt_calls_writes", **more)
    with pytest.raises(RuntimeError, match="adopt_calls_writes: what was adopted has written to its argument x"):
        op(torch.ones(2, requires_grad=recorded))
