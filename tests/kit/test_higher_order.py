"""References that use PyTorch's higher-order operators, or torch.func, do as operators what they do as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention

import opwright as ow

Function = Callable[..., Tensor]


def chooses(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,))  # type: ignore[no-any-return]


def loops(x: Tensor) -> Tensor:
    last: Tensor = while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1]
    return last.clone()


def scans(x: Tensor) -> Tensor:
    def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        y = carry * row.sin()
        return y, y.clone()

    return scan(step, torch.ones_like(x[0]), x)[1]  # type: ignore[no-any-return]


def maps(x: Tensor) -> Tensor:
    mapped: Tensor = torch.vmap(lambda row: row * row.sum())(x)
    return mapped


def attends(x: Tensor) -> Tensor:
    q = x.reshape(1, 1, 4, 16)
    return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score + 0.1 * (i - j)).clone()  # type: ignore[union-attr]


def value(function: Function, x: Tensor) -> Tensor:
    return function(x.detach())


def gradient(function: Function, x: Tensor) -> Tensor:
    return torch.autograd.grad(function(x).square().sum(), x)[0]


def second(function: Function, x: Tensor) -> Tensor:
    (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), x)[0]


def compiled(use: Callable[[Function, Tensor], Tensor]) -> Callable[[Function, Tensor], Tensor]:
    def run(function: Function, x: Tensor) -> Tensor:
        torch.compiler.reset()
        return use(torch.compile(function, backend="aot_eager", fullgraph=True), x)

    return run


USES: dict[str, Callable[[Function, Tensor], Tensor]] = {
    "value": value,
    "gradient": gradient,
    "second": second,
    "compiled value": compiled(value),
    "compiled gradient": compiled(gradient),
}


REFUSED = {
    "chooses": ["second"],  # "Cannot access data pointer of Tensor that doesn't have storage"
    "attends": ["gradient", "second", "compiled gradient"],  # "does not support backward on CPU"
}
"""What PyTorch cannot do with the plain function on a CPU."""


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("function", [chooses, loops, scans, maps, attends])
@pytest.mark.parametrize("opaque", [pytest.param(False, marks=pytest.mark.slow), True])
def test_higher_order_references(function: Any, opaque: bool) -> None:
    op = ow.op(name=f"higher_{function.__name__}_{opaque}", opaque=opaque)(function)
    x = torch.rand(4, 16, requires_grad=True)
    for name, use in USES.items():
        if name in REFUSED.get(function.__name__, ()):
            try:
                use(function, x)
            except Exception:
                continue  # else this torch can
        for _round in range(2):
            torch.testing.assert_close(use(op, x), use(function, x))


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="here PyTorch says nothing itself"
)
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_what_has_no_gradient_says_so() -> None:
    op = ow.op(name="higher_refused", opaque=True)(attends)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        gradient(op, torch.rand(4, 16, requires_grad=True))
