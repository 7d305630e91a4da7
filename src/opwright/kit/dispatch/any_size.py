"""Whether an operator takes every device's pieces of a call, whatever the sizes that torch.compile leaves open.

One rank compiles anew for sizes for which another keeps its graph. So what is decided for sizes that are symbols must
hold for all of them: no branch of the operator's may ask for one, and pieces of one element or none must do as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opwright.kit import private
from opwright.kit.dispatch import carry
from opwright.kit.dispatch.traced import Meta, results
from opwright.kit.private import dtensors

if TYPE_CHECKING:
    from opwright.kit.op import Op

Axes = tuple[int, ...]
"""The dimensions of a mesh along which a dimension of a tensor is cut."""
Size = int | tuple[str, Axes]
"""A size; one that is left open as it is spelled, and how it is cut: pieces have another size than the whole."""


def is_open(values: Mapping[str, Any]) -> bool:
    """Whether a call has sizes that are symbols."""
    return any(type(n) is not int for v in values.values() if type(v) is Meta for n in v.shape)


def fits(op: Op[..., Any], values: Mapping[str, Any], specs: Mapping[str, Any], outs: Sequence[Any], mesh: Any) -> bool:
    """Whether each device's run gives its part of the whole for all sizes, where tensors and results are placed as
    these DTensorSpecs say."""
    whole = _run(op, values, {n: [_size(size, (), {}) for size in values[n].shape] for n in specs}, {})
    if whole is None:
        return False
    met = set()
    for coordinate in carry.coordinates(mesh):
        here = dict(enumerate(zip((mesh.size(axis) for axis in range(mesh.ndim)), coordinate, strict=True)))
        pieces = {n: _part(values[n].shape, spec, here) for n, spec in specs.items()}
        key = tuple(map(tuple, pieces.values()))
        if key in met:
            continue
        met.add(key)
        cut = sorted({n for piece in pieces.values() for n in piece if isinstance(n, tuple) and n[1]})
        for small in itertools.product((None, 0, 1), repeat=len(cut)):
            known: dict[Size, int] = {name: n for name, n in zip(cut, small, strict=True) if n is not None}
            found = _run(op, values, pieces, known)
            if found is None or len(found) != len(outs):
                return False
            for mine, all_of_it, spec in zip(found, whole, outs, strict=True):
                want = None if all_of_it is None or spec is None else _part(all_of_it, spec, here)
                if mine != (None if want is None else [known.get(n, n) for n in want]):
                    return False
    return True


def _part(shape: Sequence[Any], spec: Any, here: Mapping[int, tuple[int, int]]) -> list[Size]:
    """What a device has of the sizes of a tensor: `here` is for each dimension of the mesh how many there are, and its
    place among them."""
    strided = dtensors.parts().StridedShard
    dims = [p.dim if p.is_shard() or isinstance(p, strided) else None for p in spec.placements]
    return [_size(n, tuple(a for a, dim in enumerate(dims) if dim == place), here) for place, n in enumerate(shape)]


def _size(size: Any, axes: Axes, here: Mapping[int, tuple[int, int]]) -> Size:
    if isinstance(size, tuple):
        return size[0], axes
    if type(size) is not int:
        return str(size), axes
    mine: int = size
    for axis in axes:
        count, place = here[axis]
        each = -(-mine // count)
        mine = max(0, min(each, mine - place * each))
    return mine


def _run(
    op: Op[..., Any], values: Mapping[str, Any], sizes: Mapping[str, Sequence[Size]], known: Mapping[Size, int]
) -> list[list[Size] | None] | None:
    """The shapes of an operator's results for tensors of these sizes; None where it refuses them, or asks for one that
    is open."""
    names = sorted({n for shape in sizes.values() for n in shape if isinstance(n, tuple) and n not in known})
    mode, symbols = private.symbolic_sizes(len(names))
    made: dict[Size, Any] = {**dict(zip(names, symbols, strict=True)), **known}
    spelled: dict[str, Size] = {str(symbol): name for name, symbol in zip(names, symbols, strict=True)}
    given = dict(values)
    for tensor, shape in sizes.items():
        given[tensor] = values[tensor]._replace(shape=tuple(made.get(n, n) for n in shape))
    try:
        found = results(op, given, mode)
    except Exception:
        return None
    if private.asked_sizes(mode):
        return None
    return [None if shape is None else [_named(n, spelled) for n in shape] for shape in found]


def _named(size: Any, spelled: Mapping[str, Size]) -> Size:
    """A size of a result: one of the call's, or an expression of them, which nothing equals."""
    return size if type(size) is int else spelled.get(str(size), (str(size), (-1,)))
