"""Objects of C++ that a gradient takes again: as they were at the call, whatever became of them since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op


def takes_one(op: Op[..., Any]) -> bool:
    """Whether an operator takes an object of C++."""
    return any(private.CLASSES in p.kind.schema for p in op.signature.parameters)


class Seen:
    """An object, and the state that it was in: what its class gives to pickle."""

    def __init__(self, op: Op[..., Any], name: str, value: Any) -> None:
        self.label, self.value = f"{op.name}: its argument {name}", value
        if not hasattr(value, "__getstate__"):
            raise TypeError(
                f"{self.label} is an object of {private.class_of(value)}, which the gradient takes again, and nothing "
                f"tells whether it has changed by then; give its class def_pickle, or call {op.name} under no_grad"
            )
        self.state = value.__getstate__()
        self.versions = [t._version for t in _counted(self.state)]

    def as_it_was(self) -> Any:
        """The object; one in its former state, where it has changed."""
        written = [t._version for t in _counted(self.state)] != self.versions
        if not written and _same(self.state, self.value.__getstate__()):
            return self.value
        if written:
            raise RuntimeError(
                f"{self.label} holds a tensor that has been modified by an inplace operation since the forward, and "
                f"the gradient needs it as it was; let it hold another tensor instead, or a clone"
            )
        kind: Any = type(self.value)
        former = kind.__new__(kind)  # as pickle makes it
        former.__setstate__(self.state)
        return former


def _counted(state: Any) -> list[Tensor]:
    return [t for t in _tensors(state) if not t.is_inference()]


def _tensors(state: Any) -> list[Tensor]:
    if isinstance(state, dict):
        return [t for pair in state.items() for part in pair for t in _tensors(part)]
    if isinstance(state, (list, tuple)):
        return [t for part in state for t in _tensors(part)]
    return tensors(state)


def _same(a: Any, b: Any) -> bool:
    """Whether two states are one."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
            return False
        return (a.data_ptr() == b.data_ptr() and a.stride() == b.stride()) or bool(torch.equal(a, b))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(_same(a[k], b[k]) for k in a)
    return a is b or bool(a == b)
