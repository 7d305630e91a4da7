"""Annotations become schemas, or are refused with a sentence that says how to fix them."""

from __future__ import annotations

import enum
from typing import Any, Literal, NamedTuple, Optional

import pytest
import torch
from torch import Tensor

import opwright as ow


class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2


class Pair(NamedTuple):
    values: Tensor
    indices: Tensor


def every_kind(
    x: Tensor,
    maybe: Optional[Tensor],  # noqa: UP045
    many: list[Tensor],
    n: int = -3,
    *,
    a: float = 1e-5,
    flag: bool = False,
    z: complex = 2j,
    number: ow.Number = 2,
    name: str = 'a "quoted" name',
    side: Side = Side.LEFT,
    how: Literal["up", "down"] = "up",
    dtype: torch.dtype | None = None,
    kind: torch.dtype = torch.float32,
    device: torch.device | None = None,
    sizes: list[int] = [1, 2],  # noqa: B006
    weights: tuple[float, ...] = (0.5,),
    some: list[bool] | None = None,
) -> Tensor:
    values = (n, a, flag, z, number, name, side, how, dtype, kind, device, sizes, weights, some)
    seen.append(values)
    return x * 1


seen: list[tuple[Any, ...]] = []


def test_every_kind_of_parameter_has_a_schema() -> None:
    op = ow.op(every_kind)
    assert op.schema == (
        "every_kind(Tensor x, Tensor? maybe, Tensor[] many, SymInt n=-3, *, float a=1e-05, bool flag=False, "
        'complex z=2.0j, Scalar number=2, str name="a \\"quoted\\" name", str side="LEFT", str how="up", '
        "ScalarType? dtype=None, ScalarType kind=float32, Device? device=None, SymInt[] sizes=[1, 2], "
        "float[] weights=[0.5], bool[]? some=None) -> Tensor"
    )


@pytest.mark.parametrize("opaque", [False, True])
def test_every_kind_of_argument_reaches_the_reference_unchanged(opaque: bool) -> None:
    op = ow.op(opaque=opaque, namespace=f"kinds_{opaque}")(every_kind)
    x = torch.ones(2)
    given: dict[str, Any] = {
        "n": 4, "a": 2.0, "flag": True, "z": 1 + 2j, "number": 7, "name": "other", "side": Side.RIGHT, "how": "down",
        "dtype": torch.int8, "kind": torch.float64, "device": torch.device("cpu"), "sizes": [3], "weights": [1.0, 2.0],
        "some": [True, False],
    }  # fmt: skip
    seen.clear()
    op(x, None, [x, x], **given)
    got = dict(zip(given, seen[-1], strict=True))
    assert got == given
    assert {k: type(v) for k, v in got.items()} == {k: type(v) for k, v in given.items()}


@pytest.mark.parametrize("opaque", [False, True])
def test_defaults_reach_the_reference_unchanged(opaque: bool) -> None:
    op = ow.op(opaque=opaque, namespace=f"defaults_{opaque}")(every_kind)
    seen.clear()
    op(torch.ones(2), None, [])
    every_kind(torch.ones(2), None, [])
    got, plain = seen
    assert got == (*plain[:-2], [0.5], plain[-1])  # a sequence arrives as a list


def test_numbers_are_converted_as_the_schema_says_inlined_or_not() -> None:
    @ow.op
    def times(x: Tensor, a: float) -> Tensor:
        return x * a

    whole = torch.tensor([1, 2])
    results = [times(whole, 2), torch.ops.tests.times(whole, 2), torch.compile(times, backend="eager")(whole, 2)]
    assert [r.dtype for r in results] == [torch.float32] * 3


def test_named_outputs_are_named_in_the_schema_and_come_back_as_they_were() -> None:
    @ow.op(nondifferentiable=("indices",))
    def top(x: Tensor) -> Pair:
        values, indices = x.topk(2)
        return Pair(values, indices)

    assert top.schema == "top(Tensor x) -> (Tensor values, Tensor indices)"
    out = top(torch.tensor([1.0, 3.0, 2.0], requires_grad=True))
    assert isinstance(out, Pair)
    assert out.values.requires_grad
    assert not out.indices.requires_grad


def define(source: str, **options: Any) -> ow.Op[..., Any]:
    scope: dict[str, Any] = {"torch": torch, "Tensor": Tensor, "ow": ow, "Any": Any, "__name__": __name__}
    exec(source, scope)
    return ow.op(namespace="refused", **options)(scope["f"])


@pytest.mark.parametrize(
    "source, sentence",
    [
        ("def f(x) -> Tensor: ...", "f: parameter 'x' has no annotation; write for example `x: torch.Tensor`"),
        ("def f(x: Tensor): ...", "f: annotate what it returns, for example `-> torch.Tensor`"),
        ("def f(x: dict) -> Tensor: ...", "f: parameter 'x' is annotated dict, which no schema can hold"),
        ("def f(*xs: Tensor) -> Tensor: ...", "f: *xs has no schema; name each parameter, or take a list"),
        ("def f(**xs: Tensor) -> Tensor: ...", "f: *xs has no schema"),
        ("def f(x: Tensor) -> dict: ...", "f: it returns dict; an operator returns a Tensor"),
        ("def f(x: Tensor) -> float: ...", "f: it returns float; an operator returns a Tensor"),
        ("def f(x: Tensor) -> int: ...", "return a tensor without dimensions, for .item()"),
        ("def f(x: Tensor = None) -> Tensor: ...", "f: 'x' is None by default; annotate it `Tensor | None`"),
        ("def f(x: Tensor, a: float = 'b') -> Tensor: ...", "f: the default of 'a' must be a float, got 'b'"),
        ("def f(x: Tensor, a: float = float('inf')) -> Tensor: ...", "cannot be written in a schema"),
        ("def f(x: 'Missing') -> Tensor: ...", "f: an annotation names 'Missing', which is not defined here"),
        ("def f(x: list[Tensor | None]) -> Tensor: ...", "which no schema can hold"),
        ("async def f(x: Tensor) -> Tensor: ...", "f: a reference is a plain function, not an async one"),
        ("def f(x: Tensor) -> Tensor: yield x", "f: a reference is a plain function"),
    ],
)
def test_bad_signatures_are_refused_when_defined(source: str, sentence: str) -> None:
    with pytest.raises(TypeError) as refused:
        define(source)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"mutates": ("z",)}, "f: mutates names 'z', which is not a parameter of f"),
        ({"mutates": ("a",)}, "is declared mutated and is not a Tensor"),
        ({"nondifferentiable": ("z",)}, "f: nondifferentiable names 'z', neither a parameter nor an output"),
        ({"name": "a b"}, "a b: an operator's name is made of letters, digits and _, got 'a b'"),
    ],
)
def test_bad_options_are_refused_when_defined(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TypeError) as refused:
        define("def f(a: float, x: Tensor) -> list[Tensor]: ...", **options)
    assert sentence in str(refused.value)


def test_a_name_that_ends_in_an_underscore_promises_an_in_place_operator() -> None:
    with pytest.raises(TypeError, match="f_: a name that ends in _ promises to write its first argument in place"):
        define("def f(x: Tensor) -> list[Tensor]: ...", name="f_")
