"""Whether an operator takes each element by itself, so that all its dimensions may be cut.

The reference is traced with symbols for sizes. Where no step does more than elements, no number comes from a size and
no branch asks for one, the trace is that of every size. A symbol stands for two or more: pieces that may be smaller
than that are traced as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opwright.kit import private
from opwright.kit.dispatch.traced import Meta, Step, Trace, Unclear, same, trace
from opwright.kit.private import tree_flatten

if TYPE_CHECKING:
    from opwright.kit.op import Op

aten = torch.ops.aten
_NEUTRAL = {
    aten.detach.default, aten.alias.default, aten.clone.default, aten._to_copy.default, aten.lift_fresh_copy.default,
    aten.lift_fresh.default, aten.zeros_like.default, aten.ones_like.default, aten.full_like.default,
    aten.empty_like.default,
}  # fmt: skip
"""What takes each element by itself and is not tagged so."""

Small = tuple[int | None, ...]
"""For each dimension of the result the size of a piece that is smaller than two; None: it is larger, or not cut."""


def is_elementwise(op: Op[..., Any], values: Mapping[str, Any], mesh: Sequence[int] | None = None) -> bool:
    """Whether a call takes each element by itself, on all pieces that a mesh of this shape may have of it (None: on
    any, cut along one dimension)."""
    given = {n: v.shape for n, v in values.items() if type(v) is Meta}
    whole = _broadcast(list(given.values()))
    if whole is None:
        return False
    first = _traced(op, values, whole, (None,) * len(whole))
    if first is None or not first.steps or not all(map(_takes_elements, first.steps)):
        return False
    for small in _small(whole, mesh):
        piece = _traced(op, values, whole, small)
        if piece is None or not _same_steps(first, piece):
            return False
    return True


def _broadcast(shapes: Sequence[Sequence[Any]]) -> tuple[Any, ...] | None:
    """The sizes of the result; None where they do not broadcast. Comparing symbols is left to who made them."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    found = []
    for column in zip(*padded, strict=True):
        others = [n for n in column if n != 1]
        if any(n != others[0] for n in others):
            return None
        found.append(others[0] if others else 1)
    return tuple(found)


def _small(whole: Sequence[Any], mesh: Sequence[int] | None) -> Iterator[Small]:
    """The kinds of pieces in which a size is smaller than two."""
    rank = len(whole)
    met: set[Small] = {(None,) * rank}
    axes = (None,) if mesh is None else tuple(mesh)
    for chosen in itertools.product((None, *range(rank)), repeat=len(axes)):
        sizes = [
            _pieces(n, [size for size, at in zip(axes, chosen, strict=True) if at == place])
            for place, n in enumerate(whole)
        ]
        for small in itertools.product(*sizes):
            if small not in met:
                met.add(small)
                yield small


def _pieces(size: Any, cuts: Sequence[int | None]) -> set[int | None]:
    """How small pieces of a dimension may be; None for two and more."""
    if not cuts:
        return {None}
    if type(size) is not int or None in cuts:
        return {None, 0, 1}  # any number of devices, or any size
    parts = {size}
    for count in cuts:
        assert count is not None
        parts = {max(0, min(-(-n // count), n - i * -(-n // count))) for n in parts for i in range(count)}
    # In strides the pieces of what does not divide evenly are others.
    loose = size % max(1, _product(cuts)) != 0 and len(cuts) > 1
    return {n if n < 2 else None for n in parts} | ({0, 1} if loose else set())


def _product(cuts: Sequence[int | None]) -> int:
    product = 1
    for n in cuts:
        product *= n or 1
    return product


def _traced(op: Op[..., Any], values: Mapping[str, Any], whole: Sequence[Any], small: Small) -> Trace | None:
    """A run for all sizes but those in `small`; None where it depends on one of them."""
    mode, symbols = private.symbolic_sizes(len(whole))
    sizes = [
        s if s is not None else symbol if type(n) is not int or n > 1 else n
        for n, s, symbol in zip(whole, small, symbols, strict=True)
    ]

    def resized(meta: Meta) -> Meta:
        rank = len(meta.shape)
        back = zip(meta.shape, whole[len(whole) - rank :], sizes[len(whole) - rank :], strict=True)
        return meta._replace(shape=tuple(size if n == of else 1 for n, of, size in back))

    try:
        found = trace(op, {n: resized(v) if type(v) is Meta else v for n, v in values.items()}, mode)
    except Unclear:
        return None  # it takes sizes of its own alone
    if private.asked_sizes(mode) or any(_is_symbol(v) for s in found.steps for v in tree_flatten(s.arguments)[0]):
        return None
    wanted = [str(n) for n in sizes]
    if any(o is None or [str(n) for n in found.metas[o].shape] != wanted for o in found.outputs):
        return None
    return found


def _is_symbol(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _takes_elements(step: Step) -> bool:
    if torch.Tag.pointwise in step.function.tags or step.function in _NEUTRAL:
        return True
    return not step.numbers() and all(shape == () for shape in step.shapes)  # a constant


def _same_steps(one: Trace, other: Trace) -> bool:
    return (
        one.outputs == other.outputs
        and len(one.steps) == len(other.steps)
        and all(
            a.function is b.function and same(a.arguments, b.arguments)
            for a, b in zip(one.steps, other.steps, strict=True)
        )
    )
