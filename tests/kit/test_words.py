"""What an author says of an operator is held against what can be said: a typo is an error where it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

import opwright as ow


def worded(x: Tensor, y: Tensor) -> Tensor:
    return x * y


@pytest.mark.parametrize(
    "said, error, why",
    [
        ({"compile": "inlined"}, ValueError, "compile must be 'call' or 'inline', got 'inlined'; did you mean inline"),
        ({"random": "no"}, TypeError, "random must be True or False, got 'no'"),
        ({"opaque": 1}, TypeError, "opaque must be True or False, got 1"),
        ({"tags": "pointwise"}, TypeError, "got 'pointwise'; did you mean torch.Tag.pointwise"),
        ({"tags": 3}, TypeError, "tags are those of torch.Tag, .* got 3"),
        ({"vmap": "leadng"}, TypeError, r"vmap is 'leading' or .* got 'leadng'; did you mean leading"),
        ({"vmap": "x"}, TypeError, r"got 'x'; write vmap=\('x',\)"),
        ({"mutates": 0}, TypeError, "mutates must be a tuple of names, got 0"),
        ({"nondifferentiable": 0}, TypeError, "nondifferentiable must be a tuple of names, got 0"),
        ({"autocast": True}, TypeError, "autocast must be a tuple of names, got True"),
        ({"namespace": 3}, TypeError, "an operator's namespace must be a string, got 3"),
    ],
)
def test_an_operator_takes_no_word_that_it_does_not_know(said: dict[str, Any], error: Any, why: str) -> None:
    with pytest.raises(error, match=f"worded: .*{why}"):
        ow.op(**{"namespace": "words", **said})(worded)


@pytest.mark.parametrize(
    "said, error, why",
    [
        ({"abi": "atenn"}, ValueError, "abi must be 'stable' or 'aten', got 'atenn'; did you mean aten"),
        ({"cxxflags": "-O3"}, TypeError, r"cxxflags must be a tuple of strings, got '-O3'; write cxxflags=\('-O3',\)"),
        ({"include": None}, TypeError, "include must be a tuple of strings, got None"),
        ({"arch": (9.0,)}, TypeError, "arch must be a tuple of strings"),
        ({"debug": "0"}, TypeError, "debug must be True or False, got '0'"),
        ({"rdc": 1}, TypeError, "rdc must be True or False, got 1"),
    ],
)
def test_options_take_no_word_that_they_do_not_know(said: dict[str, Any], error: Any, why: str) -> None:
    with pytest.raises(error, match=f"Options: {why}"):
        ow.Options(**said)


DECLARED: dict[str, Callable[[Any], Any]] = {
    "a kernel's domain must be an ow.Domain, got 'contiguous'": lambda op: op.kernel("cpu", "contiguous"),
    "a kernel's options must be ow.Options": lambda op: op.kernel_file("cpu.cpp", ow.Domain(), {"abi": "aten"}),
    "a kernel's file must be a string": lambda op: op.kernel_file(3),
    "a kernel's domain must be an ow.Domain, got True": lambda op: op.kernel_files("cpu.cpp", backward=True),
    "got 'gpu'": lambda op: op.kernel("gpu"),
    "a kernel in Python must be a function": lambda op: op.kernel("cpu")("kernel"),
    "needs of x must be a tuple of names, got 'xy'": lambda op: op.gradient(needs={"x": "xy", "y": "x"}),
    "needs must be a dict": lambda op: op.gradient(needs=("x",)),
    "surrogate must be True or False": lambda op: op.gradient(surrogate="yes"),
    "once must be True or False": lambda op: op.saving("z", once=1),
    "what yields samples must be a function": lambda op: op.samples([1]),
    "what yields inputs to reject must be a function": lambda op: op.rejects([1]),
    "the cost must be a function": lambda op: op.cost(3),
    "its bench cases must have a name": lambda op: op.bench(3),
    "sizes must be a tuple of whole numbers, got 256": lambda op: op.bench("many", sizes=256)(lambda make, n: ()),
    "there is no kind of device 'cudda' to measure on; did you mean cuda": lambda op: op.bench(
        "some", sizes={"cudda": (3,)}
    ),
    "compiled must be True or False": lambda op: op.bench("few", compiled="no"),
    "other must be a function": lambda op: op.variant("other", 3),
    "same must be True or False": lambda op: op.rival("rival", worded, same=0),
    "prepare must be a function": lambda op: op.rival("rival", worded, prepare=3),
}


@pytest.mark.parametrize("why", DECLARED)
def test_what_cannot_be_declared_names_the_operator_and_changes_nothing(why: str) -> None:
    op = ow.op(name="declared_words", namespace="words")(worded)
    before = op.spec.declared
    with pytest.raises((TypeError, ValueError), match=f"declared_words(_backward)?: .*{why}"):
        DECLARED[why](op)
    assert op.spec.declared == before
