"""The short way into the dispatcher does what the function does that Python would have called."""

from __future__ import annotations

import itertools
import sys
from typing import Any, Literal, NamedTuple

import numpy
import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.dispatch import short


class Pair(NamedTuple):
    total: Tensor
    parts: list[Tensor]


@ow.op(namespace="short", opaque=True)
def every(
    x: Tensor,
    items: list[Tensor],
    maybe: Tensor | None = None,
    count: int = 2,
    *,
    scale: float = 1.5,
    number: ow.Number = 3,
    flag: bool = False,
    sizes: list[int] = [1],  # noqa: B006
    how: str = "up",
    limit: float | None = None,
    mode: Literal["sum", "mean"] = "sum",
    end: Literal["open", "closed"] | None = None,
) -> Pair:
    """Takes every kind of argument."""
    total = x * count * scale * number + sum(i.sum() for i in items)
    total = total if maybe is None else total + maybe
    total = total + (1 if flag else 0) + sum(sizes) + len(how) + (0 if limit is None else limit)
    total = total + {"sum": 0, "mean": 7}[mode] + (0 if end is None else len(end))
    return Pair(total, [i * 2 for i in items])


@ow.op(namespace="short", opaque=True)
def halve_(x: Tensor, by: float = 2.0) -> Tensor:
    """x / by, in place."""
    return x.div_(by)


class Sub(Tensor):
    pass


X = torch.ones(2)
ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X, [X]), {}),
    ((X, []), {}),
    ((X, (X, X)), {}),
    ((), {"x": X, "items": [X]}),
    ((X,), {"items": [X], "maybe": X}),
    ((X, [X], None, 5), {"scale": 2, "number": 2.5}),
    ((X, [X], X, 5), {"number": 2, "flag": True, "limit": 3}),
    ((X, [X]), {"number": True, "scale": True}),
    ((X, [X]), {"number": 2j}),
    ((X, [X]), {"scale": numpy.float32(2), "count": numpy.int64(3)}),
    ((X, [X]), {"sizes": [1, 2], "how": "down", "limit": None}),
    ((X, [X]), {"sizes": (4,)}),
    ((X, [X]), {"mode": "mean", "end": "closed"}),
    ((X, [X]), {"mode": "sum", "end": None}),
    ((X, [X]), {"mode": "max"}),
    ((X, [X]), {"mode": "mean\0"}),
    ((X, [X]), {"mode": None}),
    ((X, [X]), {"end": 3}),
    ((torch.nn.Parameter(X), [X]), {}),
    ((X.as_subclass(Sub), [X]), {}),
    ((X, [X], None), {"scale": 2**60}),
    ((X, [X], None), {"count": 2**70}),
    ((X, [X]), {"unknown": 1}),
    ((X, [X], None, 2, 3.0), {}),
    ((X,), {}),
    ((X, [X]), {"x": X}),
    ((X, [X, None]), {}),
    ((None, [X]), {}),
    ((X, X), {}),
    ((X, [X]), {"scale": "2"}),
    ((X, [X]), {"scale": X[0]}),
    ((X, [X]), {"flag": 1}),
    ((X, [X]), {"flag": None}),
    ((X, [X], 3.0), {}),
    ((1.0, [X]), {}),
    ((X, [torch.ones(3)], torch.ones(3)), {}),
]


def outcome(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    try:
        out = function(*args, **kwargs)
    except Exception as e:
        return type(e), str(e)
    return type(out), type(out.total), out.total.tolist(), [p.tolist() for p in out.parts]


@pytest.fixture(scope="module", autouse=True)
def _way() -> None:
    every(X, [X])
    if short.look() is not None:
        pytest.skip(f"the short way: {short.look()}")
    assert every._short is not None


@pytest.mark.parametrize("case", range(len(ARGUMENTS)))
def test_it_gives_what_the_function_gives(case: int) -> None:
    args, kwargs = ARGUMENTS[case]
    assert outcome(every, args, kwargs) == outcome(every._call, args, kwargs)


def test_a_text_that_is_one_of_some_words_needs_no_frame_of_pythons() -> None:
    called = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_filename) if event == "call" else None)
    try:
        every(X, [X], sizes=[1], mode="mean", end="open")
    finally:
        sys.setprofile(None)
    # The reference runs in Python, as the dispatcher calls it; what does not is the way there.
    assert "opwright call of" not in called[0], called


def test_in_place_operators_return_what_they_were_given() -> None:
    x = torch.full((2,), 8.0)
    halve_(x)
    assert halve_._short is not None
    assert halve_(x) is x
    assert halve_(x=x, by=1) is x
    assert x.tolist() == [2.0, 2.0]


def test_modes_and_tracers_are_heeded() -> None:
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    with Mode():
        every(X, [X])
    assert any("every" in name for name in seen)
    compiled = torch.compile(lambda x: every(x, [x], scale=2.0).total, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), every(X, [X], scale=2.0).total)
    assert "every" in str(torch.jit.trace(lambda x: every(x, [x]).total, (X,), check_trace=False).graph)


def test_errors_of_kernels_keep_their_type_and_text() -> None:
    @ow.op(namespace="short", opaque=True)
    def failing(x: Tensor) -> Tensor:
        raise KeyError("its own")

    for _ in range(2):
        with pytest.raises(KeyError, match="its own"):
            failing(X)


def test_references_are_not_lost() -> None:
    arguments: list[Any] = [X.clone(), [X.clone()], 1234567.5]
    counts = [sys.getrefcount(a) for a in arguments]
    for _ in itertools.repeat(None, 100):
        every(arguments[0], arguments[1], scale=arguments[2])
    assert [sys.getrefcount(a) for a in arguments] == counts
