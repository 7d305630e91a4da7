"""How calls of an operator behave, which follows from its spec: whether they are one call or seen through, who records
them for autograd, and what compiled graphs hold of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opwright.kit.derive.derive import Missing, Rung
from opwright.kit.derive.roles import Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from opwright.kit.spec.operator import Spec


def opaque(spec: Spec, role: Role, saving: Spec | None) -> bool:
    """Whether a call is one call to the dispatcher, and one node in graphs."""
    if role.takes_caches:
        return True
    if spec.opaque is not None:
        return spec.opaque
    if spec.fake is not None:
        return True  # its author says that compilers shall not look into it
    if spec.formula is not None:
        return True  # seen through, it would be differentiated by a different formula
    return bool(spec.kernels) or (saving is not None and bool(saving.kernels))


def formula_is_seen_through(spec: Spec) -> bool:
    """Whether a formula is all that makes it one call: compiled graphs hold what both are made of."""
    lists = any(o.kind.is_list for o in spec.signature.outputs)  # whose lengths a compiler would have to know
    return spec.formula is not None and not (spec.opaque is not None or spec.kernels or spec.fake or lists)


def recorded_by_reference(spec: Spec, one_call: bool, gradient: Callable[[], Rung | Missing]) -> bool:
    """Whether autograd records what the reference does, rather than one node with the gradient operator behind it."""
    if not one_call:
        return True
    found = gradient()
    return isinstance(found, Missing) and (found.too_long or spec.random or writes_what_it_follows(spec))


def writes_what_it_follows(spec: Spec) -> bool:
    """Whether an operator writes, and has arguments that carry gradients: one that updates buffers from what it takes
    for constants has no gradient to miss."""
    return bool(spec.written) and bool(spec.signature.differentiable_inputs or spec.signature.returns_input)


def held_on(spec: Spec, role: Role, shaped: bool, gradient: Callable[[], Rung | Missing]) -> frozenset[str] | None:
    """The kinds of device on which compiled graphs hold the operator, and elsewhere what it is made of; None: on all.
    `shaped`: something other than the reference says what its results look like."""
    # Without a gradient operator, a graph that holds the operator whole could not hold its gradient.
    if spec.compile == "inline" or spec.random or (writes_what_it_follows(spec) and isinstance(gradient(), Missing)):
        return frozenset()
    if spec.opaque is not None or shaped or role.takes_caches:
        return None
    if spec.kernels or formula_is_seen_through(spec):
        return frozenset(kernel.device for kernel in spec.kernels)
    return None
