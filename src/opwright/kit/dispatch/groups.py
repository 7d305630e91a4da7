"""Operators that communicate by themselves, on DTensors: which dimension of a mesh their group is."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opwright.kit.derive import shard
from opwright.kit.private import dtensors
from opwright.kit.spec.shard import Rule

if TYPE_CHECKING:
    from opwright.kit.op import Op


def allowed(
    op: Op[..., Any], values: Mapping[str, Any], mesh: Any, rows: Sequence[tuple[Rule, Sequence[Any]]], made: list[Any]
) -> list[Any]:
    """Of the strategies for a mesh those in which a group's devices have pieces along a dimension across which the
    operator communicates, and no others have."""
    known = shard.declared(op)
    if known is None or known[1].group is None:
        return made
    sharding = known[1]
    name = values.get(known[1].group) or ""
    axes = _axes(op, name, mesh) if name else ()
    across = [[p for p in row if p is not None] for rule, row in rows if sharding.communicates(rule)]
    others = [[p for p in row if p is not None] for rule, row in rows if not sharding.communicates(rule)]

    def fits(strategy: Any) -> bool:
        outs = strategy.output_specs if isinstance(strategy.output_specs, (tuple, list)) else (strategy.output_specs,)
        specs = [s for s in (*outs, *strategy.input_specs) if s is not None]
        return all(
            [s.placements[axis] for s in specs] in (across if axis in axes else others) for axis in range(mesh.ndim)
        )

    found = [s for s in made if fits(s)]
    if not found:
        raise ValueError(f"{op.name}: with group={name!r} its tensors must be cut along {', '.join(sharding.across)}")
    return found


def _axes(op: Op[..., Any], name: str, mesh: Any) -> tuple[int, ...]:
    """The dimensions of a mesh whose devices are those of a group."""
    ranks = dtensors.ranks_of_group(name)
    where = mesh.get_coordinate()
    for count in range(1, mesh.ndim + 1):
        for axes in itertools.combinations(range(mesh.ndim), count):
            index = tuple(slice(None) if axis in axes else where[axis] for axis in range(mesh.ndim))
            if sorted(mesh.mesh[index].flatten().tolist()) == sorted(ranks):
                return axes
    raise ValueError(
        f"{op.name}: the group {name!r} has the ranks {ranks}, and no dimension of the mesh {mesh.mesh.tolist()} of "
        f"its tensors has these"
    )
