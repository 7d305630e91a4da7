"""What an author says of the tensors that a gradient saves: who reads them, and which calls keep them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from opwright.kit.spec.kinds import OPTIONAL_TENSOR
from opwright.kit.spec.schema import Signature

if TYPE_CHECKING:
    from opwright.kit.derive.derive import Rung


def with_needs(name: str, below: Signature, rung: Rung, needs: Mapping[str, Sequence[str]]) -> Rung:
    """The rung with its author's word on which gradients read which saved tensors."""
    inputs = [p.name for p in below.differentiable_inputs]
    saved = [p.name for p in rung.signature.parameters if p.name in (*rung.inputs, *rung.outputs) and p.kind.is_tensor]
    if set(needs) != set(inputs):
        raise TypeError(
            f"{name}: needs must name the inputs that have gradients ({', '.join(inputs)}), got {', '.join(needs)}"
        )
    for read in (n for names in needs.values() for n in names):
        if read not in saved:
            raise TypeError(f"{name}: needs names {read!r}, which is no tensor that its gradient saves")
    if rung.total is not None:
        saved = [s for s in saved if s in rung.caches]  # a second derivative reads every input
    return replace(rung, needs={s: frozenset(i for i in inputs if s in needs[i]) for s in saved})


def with_when(name: str, below: Signature, rung: Rung, when: Mapping[str, str]) -> Rung:
    """The rung with its author's word on which calls keep which saved tensors. Who may be absent is optional."""
    saved = [p.name for p in rung.signature.parameters if p.name in (*rung.inputs, *rung.outputs)]
    for tensor, flag in when.items():
        if tensor not in saved or not rung.signature.names[tensor].kind.schema.startswith("Tensor"):
            raise TypeError(f"{name}: when names {tensor!r}, which is no tensor that its gradient saves")
        if rung.signature.names[tensor].kind.is_list or rung.signature.names[tensor].like:
            raise TypeError(f"{name}: when is for a tensor that is kept whole, and {tensor!r} is not one")
        if flag not in below.names or below.names[flag].kind.schema != "bool":
            raise TypeError(f"{name}: when of {tensor!r} must name a bool parameter of {name}, got {flag!r}")
        if flag not in rung.inputs:
            raise TypeError(f"{name}: its gradient must take {flag!r}, which says whether {tensor!r} was kept")
    if rung.extras is not None and not rung.extras.once and any(t in rung.inputs for t in when):
        raise TypeError(
            f"{name}: a second derivative of an operator with extra results reads every input; leave out when"
        )
    parameters = tuple(replace(p, kind=OPTIONAL_TENSOR) if p.name in when else p for p in rung.signature.parameters)
    return replace(rung, signature=replace(rung.signature, parameters=parameters), when=dict(when))
