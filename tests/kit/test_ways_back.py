"""What C++ hands back to Python arrives as it was given; and gradients are defined when somebody asks for them."""

from __future__ import annotations

import enum
from typing import Any, Literal, NamedTuple

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit import private
from opwright.kit.dispatch import native, registry

Seen = dict[str, Any]


class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2


class Both(NamedTuple):
    total: Tensor
    parts: list[Tensor]


seen: list[Seen] = []


@ow.op(opaque=True, namespace="ways_back")
def every(
    x: Tensor,
    more: list[Tensor],
    maybe: Tensor | None,
    dtype: torch.dtype,
    dtypes: list[torch.dtype],
    layout: torch.layout,
    device: torch.device,
    *,
    format: torch.memory_format = torch.contiguous_format,
    some: torch.dtype | None = None,
    number: ow.Number = 2,
    real: float = 0.5,
    whole: int = 3,
    flag: bool = True,
    turn: complex = 1j,
    word: str = "a",
    side: Side = Side.LEFT,
    mode: Literal["p", "q"] = "p",
    sizes: list[int] | None = None,
) -> Both:
    seen.append(dict(locals()))
    total = x * number * real * whole
    return Both(total, [x + m for m in more])


GIVEN: Seen = {
    "dtype": torch.bfloat16,
    "dtypes": [torch.int32, torch.float64],
    "layout": torch.sparse_csr,
    "device": torch.device("cpu"),
    "format": torch.channels_last,
    "some": torch.complex64,
    "number": 7,
    "real": 0.25,
    "whole": 11,
    "flag": False,
    "turn": 2 + 3j,
    "word": "ö",
    "side": Side.RIGHT,
    "mode": "q",
    "sizes": [4, 5],
}


@pytest.mark.parametrize("maybe", [False, True])
@pytest.mark.parametrize("length", [0, 2])
def test_the_gradient_gets_every_kind_of_value(length: int, maybe: bool) -> None:
    x, more = torch.ones(3, requires_grad=True), [torch.ones(3, requires_grad=True) for _ in range(length)]
    for _ in range(2):  # the first call lets C++ take over
        seen.clear()
        out = every(x, more, torch.ones(1) if maybe else None, **GIVEN)
        grads = torch.autograd.grad(out.total.sum() + sum(p.sum() for p in out.parts), [x, *more])
        assert grads[0].tolist() == [7 * 0.25 * 11 + length] * 3
        assert len(seen) >= 2  # the gradient is derived from the reference, which runs again
        for ran in seen:
            assert {name: ran[name] for name in GIVEN} == GIVEN
            assert (ran["maybe"] is not None) == maybe


@pytest.mark.skipif(native.available() is not None, reason="the own C++ is not built")
def test_every_dtype_layout_and_format_crosses() -> None:
    @ow.op(opaque=True, namespace="ways_back")
    def told(x: Tensor, dtype: torch.dtype, layout: torch.layout, format: torch.memory_format) -> Tensor:
        arrived.append((dtype, layout, format))
        return x * 2

    arrived: list[Any] = []
    dtypes = {v for v in vars(torch).values() if isinstance(v, torch.dtype)}
    layouts = {v for v in vars(torch).values() if isinstance(v, torch.layout)}
    formats = [torch.contiguous_format, torch.channels_last, torch.channels_last_3d, torch.preserve_format]
    x = torch.ones(2, requires_grad=True)
    for dtype in dtypes:
        arrived.clear()
        told(x, dtype, torch.strided, torch.preserve_format).sum().backward()
        assert {each[0] for each in arrived} == {dtype}
    for layout, format in zip(layouts, formats * 9, strict=False):
        arrived.clear()
        told(x, torch.float32, layout, format).sum().backward()
        assert {each[1:] for each in arrived} == {(layout, format)}


def test_a_gradient_is_in_the_dispatcher_when_somebody_asks_for_it() -> None:
    @ow.op(opaque=True, namespace="ways_back")
    def asked(x: Tensor) -> Tensor:
        return x * 3

    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        asked(x).sum().backward()
    assert asked.backward.registered is None
    assert not private.schemas_of("ways_back::asked_backward")
    (grad,) = torch.ops.ways_back.asked_backward(torch.ones(2), torch.ones(2), wanted=None).unsqueeze(0)
    assert grad.tolist() == [3, 3]
    assert torch.ops.ways_back.asked_backward.default is asked.backward.overload
    assert torch.ops.ways_back.asked_backward_backward.default is asked.backward.backward.overload
    with pytest.raises(AttributeError, match="asked_forward"):
        _ = torch.ops.ways_back.asked_forward


def test_by_name_the_gradient_of_the_new_definition_is_found() -> None:
    def define(factor: float) -> Any:
        scope: dict[str, Any] = {"torch": torch, "__name__": __name__}
        exec(f"def renewed(x: torch.Tensor) -> torch.Tensor:\n    return x * {factor}", scope)
        return ow.op(opaque=True, namespace="ways_back")(scope["renewed"])

    x = torch.ones(2, requires_grad=True)
    for factor in (2.0, 5.0, 7.0):
        op = define(factor)
        op(x).sum().backward()
        assert torch.ops.ways_back.renewed_backward(torch.ones(2), torch.ones(2)).tolist() == [factor] * 2
        assert registry.recall("ways_back::renewed_backward") is op.backward


def test_a_second_derivative_is_one_call_of_an_opaque_gradient() -> None:
    @ow.op(opaque=True, namespace="ways_back")
    def cubed(x: Tensor) -> Tensor:
        return x * x * x

    x = torch.tensor([2.0], requires_grad=True)
    (first,) = torch.autograd.grad(cubed(x).sum(), x, create_graph=True)
    assert first.grad_fn is not None
    assert first.grad_fn.name() == "CubedBackwardBackward"
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    (third,) = torch.autograd.grad(second.sum(), x)
    assert (first.item(), second.item(), third.item()) == (12, 12, 6)
