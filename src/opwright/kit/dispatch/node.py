"""Autograd in C++: what the node must know of an operator, written down when it is first needed.

An operator is registered with Python's autograd (record.py) at the key that stands for all devices. Its first call
there lets the node take over, at the keys of the devices, where the package's own C++ is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from opwright.kit import locks, private
from opwright.kit.derive.derive import Missing
from opwright.kit.dispatch import native, objects, registry, ways, wire
from opwright.kit.dispatch.untraced import untraced
from opwright.kit.spec.schema import Signature

if TYPE_CHECKING:
    from opwright.kit.derive.derive import Rung
    from opwright.kit.dispatch.registry import Entry
    from opwright.kit.op import Op

_lock = locks.settled(locks.NODE)
_library: torch.library.Library | None = None


def why_not(op: Op[..., Any]) -> str | None:
    """None when calls of the operator are recorded in C++, else why they are recorded in Python."""
    if op.recorded_by_reference and not _writes_what_it_is_given(op):
        return "autograd records what its reference does"
    if objects.takes_one(op):
        return "it takes an object of C++, which may change until the gradient is computed"
    return native.available()


def _writes_what_it_is_given(op: Op[..., Any]) -> bool:
    """Whether it is the in-place form of an operator whose gradient serves it as well."""
    base = op.functional
    return op.opaque and not op.random and base is not None and base.has_rung and base.derivation.extras is None


def take_over(entry: Entry, *, watched: bool = False) -> bool:
    """Let C++ record the operator's calls from now on, if it can; whether this call brought that about. While a tracer
    looks on, only for who says so: what is traced goes on in Python then."""
    if entry.native or why_not(entry.op) is not None:
        return False
    if not watched and (private.modes() or private.innermost_transform() is not None):
        return False
    with _lock:
        _answer_questions()
        _write(entry)
    return True


def forget(entry: Entry) -> None:
    """The operator has changed: C++ will ask for it anew, and what is being written down is out of date."""
    entry.changes += 1
    entry.met.clear()  # it may have a form that saves now, which needs rules of its own
    if entry.native:
        with private.unwatched():
            torch.ops.opwright_native.forget(entry.overload.name())


def adopt(entry: Entry) -> None:
    """Take over an operator that a library for C++ has brought along: from now on C++ asks Python."""
    with _lock:
        _answer_questions()
        torch.ops.opwright_native.adopt(entry.overload.name(), ways.unrouted(entry), ways.rejecting(entry))


def _answer_questions() -> None:
    global _library
    if _library is None:
        _library = torch.library.Library("opwright_native", "IMPL")
        _library.impl("ask", untraced(lambda name: _write(registry.entry_of(name))), "CompositeExplicitAutograd")
        capturing = untraced(lambda: torch.cuda.is_current_stream_capturing())  # a code of its own to leave alone
        _library.impl("is_capturing", capturing, "CompositeExplicitAutograd")
        for key in registry.BELOW_AUTOGRAD:
            _library.impl("meet", untraced(_meet), key)


def _meet(name: str, given: list[torch.Tensor]) -> bool:
    for kind in {type(t) for t in given}:
        if registry.is_distributed(kind):
            native.introduce(kind)
    return registry.meet(name, given)


def _write(entry: Entry) -> None:
    while True:
        changes = entry.changes
        words = wire.words(_recorded(entry))

        def write(words: list[str] = words) -> None:
            with private.unwatched():
                torch.ops.opwright_native.record(words)
            entry.native = True

        if registry.if_unchanged(entry, changes, write):
            return


def _recorded(entry: Entry) -> wire.Recorded:
    """What C++ must know of an operator that Python stands behind."""
    op = entry.op
    above = gradient_of(op)
    there = above is not None and bool(above.kernels)
    return describe(op, above)._replace(
        op=entry.overload.name(),
        form=recorded_form(op).overload.name(),
        reference=ways.reference(entry),
        gradient=above.overload.name() if above is not None and there else None,
        gradient_way=ways.gradient(entry, above) if above is not None and not there else None,
    )


def gradient_of(op: Op[..., Any]) -> Op[..., Any] | None:
    """The operator that calls recorded in C++ have behind them; None: there is none."""
    ladder = _ladder(op)
    return ladder.backward if ladder.has_rung else None


def recorded_form(op: Op[..., Any]) -> Op[..., Any]:
    """What runs when a gradient will be wanted."""
    return op.recorded_form if _ladder(op) is op and op.has_rung else op


def _ladder(op: Op[..., Any]) -> Op[..., Any]:
    """The operator whose gradient serves it: of an in-place form, the one that it computes in place."""
    return op.functional if _writes_what_it_is_given(op) and op.functional is not None else op


NOWHERE = -1
"""The way of operators that are loaded where there is no Python."""


def describe(op: Op[..., Any], above: Op[..., Any] | None) -> wire.Recorded:
    """What C++ must know of an operator, and of the gradient operator above it, without any way into Python."""
    in_place, ladder = _writes_what_it_is_given(op), _ladder(op)
    followed = op.signature.differentiable_inputs if ladder.signature.differentiable_outputs else ()
    mutated = [] if in_place else [p for p in op.signature.parameters if p.mutated and p not in followed]
    return wire.Recorded(
        op=op.qualname,
        name=op.name,
        arguments=tuple(p.name for p in op.signature.parameters),
        form=recorded_form(op).qualname,
        reference=NOWHERE,
        gradient=None if above is None else above.qualname,
        gradient_way=None,
        missing=f"{op.name}: {_missing(op)}" if above is None else "",
        once=None if above is None else above.differentiable_once,
        by_reference=op.recorded_by_reference and not in_place,
        followed=tuple(i for i, p in enumerate(op.signature.parameters) if p in followed),
        written=0 if in_place else None,
        updated=tuple(i for i, p in enumerate(op.signature.parameters) if p in mutated),
        differentiable=tuple(o.differentiable for o in op.signature.outputs),
        sources=() if above is None or above.rung is None else _sources(above.rung, ladder.signature),
    )


def _sources(rung: Rung, below: Signature) -> tuple[wire.Source, ...]:
    """Where each argument of the gradient operator comes from."""
    places = {p.name: i for i, p in enumerate(below.parameters)}
    gradients = dict(zip(rung.grads, below.differentiable_outputs, strict=True))
    followed = below.differentiable_inputs[:63]  # beyond, everything is kept
    sources = []
    for p in rung.signature.parameters:
        origin: wire.Origin
        if p.name in gradients:
            origin, position = "gradient", gradients[p.name]
        elif p.name == rung.wanted:
            origin, position = "wanted", 0
        elif p.name in rung.outputs:
            origin, position = "output", rung.outputs[p.name]
        else:
            origin, position = "input", places[p.name]
        readers = _ALL
        if p.name in rung.needs:
            readers = sum(1 << i for i, f in enumerate(followed) if f.name in rung.needs[p.name])
        when = places[rung.when[p.name]] if p.name in rung.when else None
        sources.append(wire.Source(origin, position, p.kind.is_optional, p.like, readers, when))
    return tuple(sources)


_ALL = 2**63 - 1


def _missing(op: Op[..., Any]) -> str:
    found = op.next_rung
    return found.reason if isinstance(found, Missing) else ""
