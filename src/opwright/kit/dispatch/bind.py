"""Binds an operator's spec: writes the functions that its calls run, and tells the dispatcher and C++.

An operator that is defined, or changed by a decorator, comes here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from opwright.kit.derive import behaviour
from opwright.kit.dispatch import call, formula, native, node, registry, short
from opwright.kit.dispatch.kernel import Kernel

if TYPE_CHECKING:
    from opwright.kit.derive.derive import Rung
    from opwright.kit.op import Op


class Calls(NamedTuple):
    """What a call of an operator may run."""

    direct: Callable[..., Any]
    """The reference, its arguments and results checked."""
    seen_through: Callable[..., Any]
    """What PyTorch sees through in the operator's place: the same, with a declared gradient behind it."""
    dispatched: Callable[..., Any]
    """The dispatcher."""
    followed: tuple[Rung, Callable[..., Any]] | None = None
    """The gradient that stands behind `seen_through`, and that function."""


def bind(op: Op[..., Any]) -> None:
    """Let calls of an operator do what its spec says, and whoever wrote down something of it ask again."""
    _bind(op)
    if op.form_of is not None:
        _bind(op.form_of)  # which is one call where its form has kernels
    for each in (op, *op.dependents):
        _invalidate(each)


def replace(entry: registry.Entry, op: Op[..., Any]) -> None:
    """Put an operator behind a name where another one was, with the same schema. The registry's lock is held."""
    bind(op)
    entry.op = op
    node.forget(entry)
    native.unroute(entry.overload.name())


def _bind(op: Op[..., Any]) -> None:
    known = {kernel.spec: kernel for kernel in op.kernels}
    kernels = [known.get(spec) or Kernel(spec, op.spec) for spec in op.spec.kernels]
    before: Calls | None = op.__dict__.get("calls")
    direct = call.direct(op.state) if before is None else before.direct
    followed = _followed(op, direct, None if before is None else before.followed)
    seen_through = direct if followed is None else followed[1]
    devices = behaviour.held_on(op.spec, op.role, op.shapes is not None, lambda: op.next_rung)
    dispatched = call.dispatched(op.name, op.signature, op.overload, seen_through, devices, followed is not None)
    op.kernels, op.calls = kernels, Calls(direct, seen_through, dispatched, followed)
    if op.opaque:
        op._call = dispatched
    else:
        op._call = call.kept_by_export(direct, dispatched) if op.is_gradient else direct
    op._short = short.way(op)


Followed = tuple["Rung", Callable[..., Any]]


def _followed(op: Op[..., Any], direct: Callable[..., Any], before: Followed | None) -> Followed | None:
    if op.spec.formula is None or op.is_gradient:
        return None
    rung = op.derivation
    if before is not None and before[0] is rung:
        return before  # kernels come and go, the formula stays
    saving = None if rung.extras is None or op.spec.extras is None else op.spec.extras.function
    return rung, formula.followed(op.name, op.signature, direct, rung, saving)


def _invalidate(op: Op[..., Any]) -> None:
    entry = registry.by_overload.get(op.overload.name())
    if entry is not None and entry.op is op:
        with registry.lock:
            node.forget(entry)
