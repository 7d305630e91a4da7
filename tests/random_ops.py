"""Operators drawn at random: a schema, and a composition of tensor functions that uses it."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

import opwright as ow


class Mode(enum.Enum):
    PLUS = 1
    TIMES = 2


UNARY = (
    "torch.sin({})",
    "torch.tanh({})",
    "torch.exp(-{} * {})",
    "torch.sigmoid({})",
    "{}.mT.contiguous().mT",
    "torch.nn.functional.softplus({})",
    "({} - {}.mean(-1, keepdim=True))",
    "{}.sum(-2, keepdim=True)",
    "torch.logsumexp({}, -1, keepdim=True)",
    "torch.cumsum({}, -1)",
    "torch.softmax({}, -1)",
    "{}.flip(-1)",
    "{}.detach()",
    "torch.where({} > 0, {}, 0.5 * {})",
    "{}[..., :1]",
)
BINARY = (
    "({} + {})",
    "({} * {})",
    "({} - {})",
    "({0} / (2 + {1} * {1}))",
    "torch.maximum({}, {})",
    "torch.atan2({}, 3 + {})",
    "torch.hypot(1 + {}, {})",
)
SHAPES = ((2, 3), (1, 3), (2, 1), (3,), ())
_counter = itertools.count()


@dataclass
class RandomOp:
    """A drawn operator: its source, its twin that is one opaque call, and arguments to try it on."""

    source: str
    function: Callable[..., Any]
    plain: Callable[..., Any]
    transparent: ow.Op[..., Any]
    opaque: ow.Op[..., Any]
    sample: ow.Sample

    def __repr__(self) -> str:
        return f"\n{self.source}\n{self.sample}"


@st.composite
def random_ops(draw: st.DrawFn) -> RandomOp:
    parameters: list[str] = []
    keywords: list[str] = []
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    leaves: list[str] = []
    setup: list[str] = []
    make = ow.Maker(torch.float64, seed=draw(st.integers(0, 1000)))

    def shape() -> tuple[int, ...]:
        return draw(st.sampled_from(SHAPES))

    for i in range(draw(st.integers(1, 3))):
        parameters.append(f"x{i}: Tensor")
        args.append(make(*shape()))
        leaves.append(f"x{i}")
    fixed = [n for n in leaves[1:] if draw(st.booleans())]
    if draw(st.booleans()):
        parameters.append("items: list[Tensor]")
        args.append([make(*shape()) for _ in range(draw(st.integers(1, 3)))])
        setup.append("    total = items[0] * 1\n    for item in items[1:]:\n        total = total + item")
        leaves.append("total")
    if draw(st.booleans()):
        parameters.append("maybe: Tensor | None = None")
        given = draw(st.booleans())
        args.append(make(*shape()) if given else None)
        setup.append("    some = x0 * 2 if maybe is None else maybe * 3")
        leaves.append("some")
    for kind, values in (("float", (0.5, 2.0)), ("int", (2, -1)), ("ow.Number", (3, 0.25)), ("bool", (True, False))):
        if draw(st.booleans()):
            name = f"n_{kind.rpartition('.')[2].lower()}"
            keywords.append(f"{name}: {kind} = {values[0]}")
            kwargs[name] = draw(st.sampled_from(values))
            leaves.append(f"(x0 * {name})")
    if draw(st.booleans()):
        keywords.append("mode: Mode = Mode.PLUS")
        kwargs["mode"] = draw(st.sampled_from(list(Mode)))
        leaves.append("(x0 + 1 if mode is Mode.PLUS else x0 * 2)")
    if draw(st.booleans()):
        keywords.append('how: Literal["up", "down"] = "up"')
        kwargs["how"] = draw(st.sampled_from(["up", "down"]))
        leaves.append('(x0 if how == "up" else -x0)')

    def expression(depth: int) -> str:
        if depth == 0:
            return draw(st.sampled_from(leaves))
        if draw(st.booleans()):
            inner = expression(depth - 1)
            unary = draw(st.sampled_from(UNARY))
            return unary.replace("{}", f"torch.atleast_2d({inner})")
        return draw(st.sampled_from(BINARY)).format(expression(depth - 1), expression(depth - 1))

    outputs = [f"({expression(draw(st.integers(0, 3)))}) * 1.0" for _ in range(draw(st.integers(1, 3)))]
    form = draw(st.sampled_from(["tuple", "list"] if len(outputs) > 1 else ["single", "list"]))
    annotation = {"single": "Tensor", "list": "list[Tensor]"}.get(
        form, f"tuple[{', '.join(['Tensor'] * len(outputs))}]"
    )
    result = (
        outputs[0]
        if form == "single"
        else f"{'[' if form == 'list' else '('}{', '.join(outputs)}{']' if form == 'list' else ')'}"
    )
    name = f"drawn_{next(_counter)}"
    signature = ", ".join([*parameters, *(["*", *keywords] if keywords else [])])
    source = "\n".join([f"def {name}({signature}) -> {annotation}:", *setup, f"    return {result}"])
    scope: dict[str, Any] = {
        "torch": torch,
        "Tensor": Tensor,
        "ow": ow,
        "Mode": Mode,
        "Literal": Literal,
        "__name__": __name__,
    }
    exec(source, scope)
    function = scope[name]
    frozen = [draw(st.integers(0, len(outputs) - 1))] if form == "tuple" and draw(st.booleans()) else []
    options: dict[str, Any] = {"nondifferentiable": (*fixed, *frozen)}
    transparent = ow.op(namespace="drawn", **options)(function)
    opaque = ow.op(namespace="drawn_opaque", opaque=True, **options)(function)
    opaque(*args, **kwargs)  # at its first call C++ takes over, so that what is tried is recorded there
    return RandomOp(
        source, function, _plain(function, fixed, frozen), transparent, opaque, ow.Sample(tuple(args), kwargs)
    )


def _plain(function: Callable[..., Any], fixed: list[str], frozen: list[int]) -> Callable[..., Any]:
    """The plain function, cut where the operator declares no gradient."""
    cut = [int(name[1:]) for name in fixed]

    def plain(*args: Any, **kwargs: Any) -> Any:
        out = function(*[a.detach() if i in cut else a for i, a in enumerate(args)], **kwargs)
        return tuple(o.detach() if i in frozen else o for i, o in enumerate(out)) if isinstance(out, tuple) else out

    return plain
