"""What Python tells the package's own C++ of an operator: records of named fields, written here and read in wire.cpp.

native/wire.h has the same records. Both sides describe theirs, and a library that describes others is not used.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch

from opwright.kit.spec.domain import Layout
from opwright.kit.spec.require import spell

VERSION = 4
"""Counted up when fields mean something else, or cross in another way, under the same names."""

Origin = Literal["gradient", "input", "output", "wanted"]
"""Where an argument of a gradient operator comes from: `wanted` says which gradients are asked for."""


class Source(NamedTuple):
    """Where one argument of a gradient operator comes from."""

    origin: Origin
    position: int  # of the output that the gradient belongs to, or of the argument or output that is kept
    optional: bool  # a gradient that may be absent; others are zeros then
    like: bool  # its shape, dtype and device are all that is kept
    needs: int  # whose gradients read its values: a bit for each followed argument
    when: int | None  # the argument, a bool, without which it is not kept


class Recorded(NamedTuple):
    """An operator as autograd records it."""

    op: str  # the operator at whose keys autograd stands
    name: str  # what messages call it
    arguments: tuple[str, ...]  # their names
    form: str  # what runs when a gradient will be wanted: itself, or its form that saves
    reference: int  # the way that runs what PyTorch sees through
    gradient: str | None  # the gradient operator, where it has kernels
    gradient_way: int | None  # the way that runs it, where it has none
    missing: str  # why there is no gradient operator
    once: str | None  # why its gradient cannot be differentiated; None: it can
    by_reference: bool  # autograd records what the reference does
    followed: tuple[int, ...]  # the arguments that have gradients
    written: int | None  # the argument that is written to and stands for the output
    updated: tuple[int, ...]  # those that are written to beside the outputs, and not followed
    differentiable: tuple[bool, ...]  # for each output; the form may return extra results after them
    sources: tuple[Source, ...]  # for each argument of the gradient operator


class Argument(NamedTuple):
    """What a kernel takes for one argument."""

    wide: bool  # may be float32 beside half and bfloat16
    dtypes: tuple[torch.dtype, ...]  # of its own; empty: those of all
    least_rank: int
    most_rank: int
    words: tuple[str, ...]  # those that a text may be; empty: any


class Dimension(NamedTuple):
    """One dimension of a size pattern; names are numbers."""

    size: int | None
    name: int | None
    plus: int | None  # the second name of a sum
    factor: int
    divisor: int


class Pattern(NamedTuple):
    """The shape that an argument must have."""

    argument: int
    leading: bool  # other dimensions may come first
    dimensions: tuple[Dimension, ...]


class Route(NamedTuple):
    """A kernel, and the calls that it takes."""

    kernel: str
    dtypes: tuple[torch.dtype, ...]  # empty: any
    mixed: bool
    broadcast: bool
    layout: Layout
    arguments: tuple[Argument, ...]
    required: tuple[int, ...]  # the tensors that must be given
    numbers: tuple[int, ...]  # the arguments that it takes as double
    texts: tuple[int, ...]  # those that may be some words alone
    names: int  # how many the patterns have
    patterns: tuple[Pattern, ...]
    says: str  # the same in words, for messages


class Routing(NamedTuple):
    """The kernels of an operator on one device, in the order in which they are asked."""

    op: str
    device: str  # the dispatch key
    reference: int  # the way that takes what no kernel does
    rejecting: int  # the way that raises what the reference would, and computes nothing
    routes: tuple[Route, ...]


RECORDS = (Source, Recorded, Argument, Dimension, Pattern, Route, Routing)
_fields = cache(get_type_hints)


def describe() -> str:
    """The records of this side: a line for each with its fields and their types, in order."""
    lines = [f"version {VERSION}"]
    for record in RECORDS:
        fields = _fields(record)
        lines.append(f"{record.__name__}: {', '.join(fields)}: {', '.join(map(_spell, fields.values()))}")
    return "\n".join(lines)


def difference(theirs: str) -> str | None:
    """Why a library that describes its records so cannot be used; None when it can."""
    wrong = {line.partition(":")[0] for line in {*describe().splitlines()} ^ {*theirs.splitlines()}}
    if not wrong:
        return None
    return (
        f"Python and the C++ of opwright's own differ in {', '.join(sorted(wrong))} "
        "(make wire.py and wire.h the same, then run `opwright build`)"
    )


def words(record: tuple[Any, ...]) -> list[str]:
    """A record as it crosses: its name, then its fields; a list after its length, a missing value as an empty list."""
    return _words(type(record), record)


def _words(kind: Any, value: Any) -> list[str]:
    if kind in RECORDS:
        fields = zip(_fields(kind).values(), value, strict=True)
        return [kind.__name__, *(word for field, each in fields for word in _words(field, each))]
    form, inner = _form(kind)
    if form:
        items = value if form == "[]" else [] if value is None else [value]
        return [str(len(items)), *(word for each in items for word in _words(inner, each))]
    return [str(int(value)) if kind in (int, bool) else spell(value)]


def _spell(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"({', '.join(get_args(kind))})"
    form, inner = _form(kind)
    return f"{_spell(inner)}{form}" if form else kind.__name__


@cache
def _form(kind: Any) -> tuple[str, Any]:
    """Whether a field holds a list, or may hold nothing, and of what; "": neither."""
    inner = get_args(kind)
    return ("[]" if get_origin(kind) is tuple else "?" if type(None) in inner else ""), next(iter(inner), None)
