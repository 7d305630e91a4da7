"""TorchScript: in scripted code an operator is what the dispatcher knows by its name."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from opwright.kit.op import Op

_taught: dict[str, tuple[Any, str]] = {}


def teach(op: Op[..., Any]) -> None:
    """Let torch.jit.script take a call of the operator for one of `torch.ops.NAMESPACE.NAME`."""
    known: Any = getattr(torch.jit, "_builtins", None)
    if known is None or not hasattr(known, "_builtin_ops") or op.signature.returns_input:
        return  # the dispatcher knows an in-place operator as one without a result
    before = _taught.get(op.qualname)
    _taught[op.qualname] = entry = (op, op.overload.name())  # the name's own, or that of a changed schema
    table = known._builtin_table  # by identity; made of the list when something is first scripted
    if table is not None:
        table[id(op)] = op.overload.name()
    else:
        known._builtin_ops.append(entry)
    if before is not None:  # the operator was defined again, and the old one may go
        if table is not None:
            table.pop(id(before[0]), None)
        with contextlib.suppress(ValueError):
            known._builtin_ops.remove(before)
