"""Other options than a sample's: numbers, flags and words, optional tensors left out, lists of other lengths.

`alpha=0` sets one. `ignore==0` also changes the integers that equal it, which stand for something then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check.constants import Constants
from opwright.kit.check.steps import spelled
from opwright.kit.op import Op
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors

LENGTHS = (1, 5, 9, 17)
"""Of lists of tensors."""
ORDERS = ("reversed", "turned")
"""What may happen to lists of numbers."""
MOST = 1 << 16
"""An option beyond it may ask for much memory, or for many steps."""
WORD = re.compile(r"\w+")
"""A text that the id of a case can hold."""


def options_of(op: Op[..., Any], sample: Sample) -> Iterator[str]:
    """Variants that change one argument which is no tensor, or leave an optional one out."""
    given = op.signature.bind(sample.args, sample.kwargs)
    for p in op.signature.parameters:
        value = given.get(p.name)
        if isinstance(value, bool):
            yield f"{p.name}={not value}"
        elif isinstance(value, int):
            numbers = dict.fromkeys((0, 1, -1, -2, value + 1, 2 * value + 3, 64))
            yield from (f"{p.name}={n}" for n in numbers if n != value)
        elif isinstance(value, float):
            yield from (f"{p.name}={n}" for n in (0, 1, -1, "5e-1", "25e-1", "-3e-1") if float(n) != value)
        elif isinstance(value, str):
            yield from (f"{p.name}={word}" for word in p.kind.words if word != value and WORD.fullmatch(word))
        elif isinstance(value, Tensor) and p.kind.is_optional and not is_whole(value):
            yield f"{p.name}=None"
        elif isinstance(value, list) and value and all(isinstance(v, Tensor) for v in value):
            yield from (f"{p.name}*{n}" for n in LENGTHS if n != len(value))
        elif isinstance(value, list) and value and all(map(_is_number, value)):
            yield from (f"{p.name}={how}" for how in ORDERS if ordered(value, how, rank_of(given)) != value)


def named_of(op: Op[..., Any], sample: Sample, constants: Constants) -> Iterator[str]:
    """Variants in which a number is one of a kernel's source, or just beyond it: where the kernel may branch."""
    for p, value in _numbers(op, sample):
        if isinstance(value, int):
            found = [spelled(c + more) for c in constants.whole if 2 < c <= MOST for more in (0, 1)]
        else:
            known = (*constants.real, *map(float, constants.whole))
            found = [spelled(n) for c in known if 1e-9 < c <= MOST for n in (c, 1.25 * c)]
        yield from (f"{p}={n}" for n in dict.fromkeys(found) if float(n) != value)


def standing_of(op: Op[..., Any], sample: Sample) -> Iterator[str]:
    """Variants of a number that stands among the integers of a sample, such as one that says which to ignore: both
    change."""
    given = op.signature.bind(sample.args, sample.kwargs)
    integers = [t for value in alone(op, given).values() for t in tensors(value) if is_whole(t)]
    for p, value in _numbers(op, sample):
        if isinstance(value, int) and any(bool((t == value).any()) for t in integers):
            yield from (f"{p}=={n}" for n in dict.fromkeys((0, 1, value + 1)) if n != value)


def followed(value: Any, old: int, new: int) -> Any:
    """An argument whose integers `old` have become `new`."""
    if isinstance(value, list):
        return [followed(v, old, new) for v in value]
    if not isinstance(value, Tensor) or not is_whole(value):
        return value
    return torch.where(value == old, torch.full_like(value, new), value)


def belongs(op: Op[..., Any], name: str) -> bool:
    """Whether an author declared an argument without a gradient: integers in it are indices, which may belong to
    others, as the two forms of a graph do."""
    return not op.home.signature.names.get(name, op.signature.names[name]).differentiable


def alone(op: Op[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """The arguments whose integers may change by themselves: one declared without a gradient belongs to no other."""
    bound = [n for n, v in values.items() if belongs(op, n) and any(map(is_whole, tensors(v)))]
    return values if len(bound) < 2 else {n: v for n, v in values.items() if n not in bound}


def is_whole(t: Tensor) -> bool:
    """Whether a tensor holds integers."""
    return not (t.is_floating_point() or t.is_complex()) and t.dtype != torch.bool


def ordered(numbers: list[Any], how: str, rank: int) -> list[Any]:
    """A list of numbers in the other order, or every other one with its sign turned: of what may be dimensions of a
    tensor of that rank so that they are counted from the end.

    >>> ordered([0, 2, 1], "reversed", 3), ordered([0, 2, 1], "turned", 3), ordered([0.5, 2.0], "turned", 3)
    ([1, 2, 0], [-3, 2, -2], [-0.5, 2.0])
    """
    if how == "reversed":
        return numbers[::-1]
    return [n if i % 2 else n - rank if isinstance(n, int) and 0 <= n < rank else -n for i, n in enumerate(numbers)]


def rank_of(values: dict[str, Any]) -> int:
    """The dimensions of the first tensor among arguments."""
    return next((t.dim() for value in values.values() for t in tensors(value)), 0)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _numbers(op: Op[..., Any], sample: Sample) -> Iterator[tuple[str, int | float]]:
    given = op.signature.bind(sample.args, sample.kwargs)
    for name, value in given.items():
        if _is_number(value):
            yield name, value
