"""Operators on DTensors: each device runs the kernel on its own pieces, where a rule says that it may.

Rules come from what an operator's author declares, from the operator that it is the gradient of, or from its reference
(elementwise.py, carry.py). Where there is none, PyTorch runs the reference step by step, and moves what a step needs.
Which it is follows from the call alone: shapes, placements, the mesh and what is no tensor. So all ranks agree.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from opwright.kit.derive import shard
from opwright.kit.derive.roles import Gradient
from opwright.kit.dispatch import carry, registry
from opwright.kit.dispatch.elementwise import is_elementwise
from opwright.kit.dispatch.traced import Meta, Moves, Unclear, trace
from opwright.kit.private import dtensors
from opwright.kit.spec.schema import Signature
from opwright.kit.spec.shard import PARTIAL, Misfit, Rule, Sharding, elementwise

if TYPE_CHECKING:
    from opwright.kit.op import Op

Source = Literal["declared", "derived", "carried", "reference", "replicates"]
"""The last two: PyTorch runs the reference step by step; every device gets the whole of all tensors."""


class Found(NamedTuple):
    """The rules of an operator for one call, and where they come from."""

    source: Source
    why: str
    rules: list[Rule] | None = None
    """None: none but that all tensors are replicated, or that of `carried`."""
    carried: tuple[Any, ...] = ()
    """The placements of the results for those that the call has, on the whole mesh."""


def find(
    op: Op[..., Any],
    values: Mapping[str, Any],
    specs: Mapping[str, Any] | None = None,
    mesh: Any = None,
    pieces: Sequence[int] | None = None,
) -> Found:
    """The rules for a call whose tensors are `Meta`; with DTensorSpecs of them, those that can be carried too. Without
    a mesh, `pieces` says into how many its dimensions would cut."""
    shapes = {n: v.shape for n, v in values.items() if type(v) is Meta}
    known = shard.declared(op)
    besides = ""
    if known is not None:
        author, sharding = known
        own = "" if author is op else f", as {author.name} has it" + ", transposed" * op.is_gradient
        try:
            rules = shard.rules(op, author, sharding, shapes, _results(op, values, shapes, author))
            rules = [r for r in rules if not _divides_integers(r, values)]
            told = [r for r in rules if _may_communicate(r, sharding, values, mesh)]
            untold = f"; whole along {', '.join(sharding.across)}, since no {sharding.group} is named"
            return Found("declared", f"{sharding.says}{own}{untold if len(told) < len(rules) else ''}", told)
        except Misfit as e:
            if mesh is not None and values.get(sharding.group or ""):
                raise ValueError(
                    f"{op.name}: the call names a {sharding.group}, and does not fit its rule: {e}"
                ) from None
            besides = f"the call does not fit what is declared ({e}), and "
        except Unclear as e:
            return Found("replicates", f"an input of {author.name} is not kept, and {e}")
    if op.random:
        return Found("reference", "it draws random numbers, and each device would draw others")
    if any(p.mutated for p in op.signature.parameters):
        return Found("reference", "it writes to its arguments")
    if has_lists(op.signature):
        return Found("reference", "it takes or returns a list of tensors")
    sizes = pieces if mesh is None else tuple(mesh.shape)
    try:
        below = _elementwise(op, values, sizes)
        if below is not None:
            rules = shard.rules(op, *below, shapes, _results(op, values, shapes, below[0]))
            return Found("derived", f"{besides}it takes each element by itself", rules)
        if specs is not None:
            out = carry.placements(op, values, specs, mesh)
            return Found("carried", f"{besides}its reference takes the pieces through every step", None, tuple(out))
    except Moves as e:
        return Found("reference", f"{besides}{e}")
    except Unclear as e:
        return Found("replicates", f"{besides}{e}")
    return Found("reference", f"{besides}no dimension is declared, and it takes more than an element at a time")


def _divides_integers(rule: Rule, values: Mapping[str, Any]) -> bool:
    """Whether a rule needs summands of integers, of which DTensor makes floating-point numbers, by division."""
    summed = [values[n].dtype for n, where in rule.inputs.items() if where == PARTIAL and type(values.get(n)) is Meta]
    return any(not (dtype.is_floating_point or dtype.is_complex) for dtype in summed)


def _may_communicate(rule: Rule, sharding: Sharding, values: Mapping[str, Any], mesh: Any) -> bool:
    """Whether the operator has been told with whom to communicate, where a rule needs that."""
    return not sharding.communicates(rule) or mesh is None or bool(values.get(sharding.group or ""))


def of_call(op: Op[..., Any], values: Mapping[str, Any]) -> Found | None:
    """The rules for a call with DTensors; None: it has none."""
    if registry.DISTRIBUTED not in sys.modules:
        return None
    kind = dtensors.parts().DTensor
    specs = {n: v._spec for n, v in values.items() if isinstance(v, kind)}
    if not specs:
        return None
    if op.functional is not None:
        plain = dict(zip(op.functional.signature.names, values.values(), strict=True))
        return of_call(op.functional, plain)
    if not op.opaque:
        return Found("reference", "PyTorch sees through an operator without kernels")
    metas = {n: Meta(tuple(v.shape), v.dtype) if n in specs else v for n, v in values.items()}
    return find(op, metas, specs, next(iter(specs.values())).mesh)


def has_lists(signature: Signature) -> bool:
    """Whether an operator takes or returns lists of tensors, of which there are no rules."""
    kinds = [p.kind for p in signature.parameters] + [o.kind for o in signature.outputs]
    return any(kind.is_list and kind.is_tensor for kind in kinds)


def _elementwise(
    op: Op[..., Any], values: Mapping[str, Any], sizes: Sequence[int] | None
) -> tuple[Op[..., Any], Sharding] | None:
    """The operator that takes each element by itself, and its sharding: this one or that whose gradient it is."""
    role = op.role
    if isinstance(role, Gradient) and shard.base(op) is not None and not role.takes_caches:
        called = _call_below(role, values)
        found = None if called is None else _elementwise(role.of, called, sizes)
        if found is not None:
            return found
    if not is_elementwise(op, values, sizes):
        return None
    return op, elementwise([p.name for p in op.signature.parameters if p.kind.is_tensor], len(op.signature.outputs))


def _call_below(role: Gradient, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The call of the operator below, as far as its gradient's call tells; None where it does not."""
    below, given = role.of, dict(values)
    grads = [v for n in role.rung.grads if type(v := values.get(n)) is Meta]
    for p in below.signature.parameters:
        if p.name in role.rung.inputs:
            continue
        given.pop(p.name, None)
        if p.kind.schema != "Tensor" or not grads or sum(q.kind.is_tensor for q in below.signature.parameters) > 1:
            return None
        given[p.name] = grads[0]  # the one tensor of an operator that takes each element by itself
    return {p.name: given[p.name] for p in below.signature.parameters if p.name in given}


def _results(
    op: Op[..., Any], values: Mapping[str, Any], shapes: Mapping[str, Any], author: Op[..., Any]
) -> Sequence[Any]:
    """The shapes of a gradient's results, where one is of an input that was not kept: they tell where that was cut."""
    role = op.role
    if op is author or not isinstance(role, Gradient):
        return ()
    if all(p.name in shapes for p in role.of.signature.differentiable_inputs):
        return ()
    traced = trace(op, values)
    return [None if o is None else traced.metas[o].shape for o in traced.outputs]
