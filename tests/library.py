"""The operators under test and the doors they are reached by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import opwright as ow
from opwright.kit.dispatch import registry
from opwright.kit.spec.operator import Spec

OPERATORS = [op for op in registry.operators() if op.namespace == "opwright" and op.home is op]
FUNCTIONAL = [op for op in OPERATORS if op.signature.outputs and not op.name.endswith("_")]
"""Those that return what they compute; what the others write, tests/test_written.py compares."""
LONG = {"spmm", "sddmm", "spmm_max", "conv_bn"}
"""Operators of a dozen tensors, which take long in every way: `test` has the plain ways, `test-all` every one."""
FORMS = [op.saving_form for op in FUNCTIONAL if op.saving_form is not None]
"""Those that return extra results."""
RUNGS = [
    rung
    for op in FUNCTIONAL
    if op.has_rung
    for rung in (op.backward, *([op.backward.backward] if op.backward.has_rung else []))
]


def opaque_twin(op: ow.Op[..., Any]) -> ow.Op[..., Any]:
    """The same operator as one opaque call, so that its whole ladder is at work."""
    spec = Spec(op.name, "twins", __name__, op.signature, op.reference, random=op.random, opaque=True)
    twin: ow.Op[..., Any] = ow.Op(replace(spec, autocast=op.autocast, samples=op.spec.samples))
    if op.spec.extras is not None:
        twin.saving(*op.spec.extras.names, once=op.spec.extras.once)(op.spec.extras.function)
    if op.spec.formula is not None:
        twin.gradient(when=op.spec.formula.when)(op.spec.formula.function)
    return twin


_twins: dict[str, ow.Op[..., Any]] = {op.name: opaque_twin(op) for op in FUNCTIONAL}
_twins |= {rung.name: _twins[rung.parent.name].backward for rung in RUNGS if rung.parent and rung.parent.parent is None}
_twins |= {rung.name: _twins[rung.parent.name].backward for rung in RUNGS if rung.parent and rung.parent.parent}
_twins |= {twin.saving_form.name: twin.saving_form for twin in list(_twins.values()) if twin.saving_form is not None}

DOORS: dict[str, Callable[[ow.Op[..., Any]], Callable[..., Any]]] = {
    "python": lambda op: op,
    "torch.ops": lambda op: getattr(getattr(torch.ops, op.namespace), op.name),
    "opaque": lambda op: _twins[op.name],
}
