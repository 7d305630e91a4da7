"""Binds an operator's spec: writes the functions that its calls run, and tells the dispatcher and C++.

An operator that is defined, or changed by a decorator, comes here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

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
    """The dispatcher; where no call of the operator goes there, the same as `direct`."""
    when_asked: tuple[Callable[..., Any], Callable[..., Any]]
    """Of a gradient, which the dispatcher may not know yet: the dispatcher, and the dispatcher while a program is
    exported, else the reference. Guards of compiled code refer to them: they stay when the others are written again."""
    followed: tuple[Rung, Callable[..., Any]] | None = None
    """The gradient that stands behind `seen_through`, and that function."""


def bind(op: Op[..., Any]) -> None:
    """Let calls of an operator do what its spec says, and whoever wrote down something of it ask again."""
    write(op)
    if op.form_of is not None:
        write(op.form_of)  # which is one call where its form has kernels
    for each in (op, *op.dependents):
        _invalidate(each)


def replace(entry: registry.Entry, op: Op[..., Any]) -> None:
    """Put an operator behind a name where another one was, with the same schema. The registry's lock is held."""
    bind(op)
    entry.op = op
    node.forget(entry)
    native.unroute(entry.overload.name())


def write(op: Op[..., Any]) -> None:
    """Write the functions that its calls run."""
    known = {kernel.spec: kernel for kernel in op.kernels}
    kernels = [known.get(spec) or Kernel(spec, op.spec) for spec in op.spec.kernels]
    if known.keys() - {*op.spec.kernels} and op.registered is not None:  # one was replaced, and C++ may still choose it
        native.unroute(op.registered.name())
        for kernel in kernels:
            kernel.unrouted()
    before: Calls | None = op.__dict__.get("calls")
    direct = call.direct(op.state) if before is None else before.direct
    followed = _followed(op, direct, None if before is None else before.followed)
    seen_through = direct if followed is None else followed[1]
    devices = behaviour.held_on(op.spec, op.role, op.shapes is not None, lambda: op.next_rung)
    dispatched = direct
    if op.registered is not None and (op.opaque or op.is_gradient):
        dispatched = call.dispatched(op.name, op.signature, op.registered, seen_through, devices, followed is not None)
    when_asked = _when_asked(op, direct) if before is None else before.when_asked
    op.kernels, op.calls = kernels, Calls(direct, seen_through, dispatched, when_asked, followed)
    if op.is_gradient:
        op._call = when_asked[0 if op.opaque else 1]
    else:
        op._call = dispatched if op.opaque else direct
    op._short = short.way(op)


def _when_asked(op: Op[..., Any], direct: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def dispatched(*args: Any, **kwargs: Any) -> Any:
        op.define()
        return op.calls.dispatched(*args, **kwargs)

    def kept_by_export(*args: Any, **kwargs: Any) -> Any:
        """A call that torch.export keeps whole: it cannot trace the derivation inside a rung."""
        return dispatched(*args, **kwargs) if torch.compiler.is_exporting() else direct(*args, **kwargs)

    return dispatched, kept_by_export


Followed = tuple["Rung", Callable[..., Any]]


def _followed(op: Op[..., Any], direct: Callable[..., Any], before: Followed | None) -> Followed | None:
    if op.spec.formula is None or op.spec.formula.derived or op.is_gradient:
        return None
    rung = op.derivation
    if before is not None and before[0] is rung:
        return before  # kernels come and go, the formula stays
    saving = None if rung.extras is None or op.spec.extras is None else op.spec.extras.function

    def write() -> Callable[..., Any]:
        return formula.followed(op.name, op.signature, direct, rung, saving)

    # No compiler looks into one that is declared opaque, and few are ever transformed.
    return rung, _once_needed(write) if op.spec.opaque else write()


def _once_needed(write: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    written: Callable[..., Any] | None = None

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal written
        written = written or write()
        return written(*args, **kwargs)

    return run


def _invalidate(op: Op[..., Any]) -> None:
    entry = None if op.registered is None else registry.by_overload.get(op.registered.name())
    if entry is not None and entry.op is op:
        with registry.lock:
            node.forget(entry)
