"""DTensor is told of operators once somebody imports it; what that takes is not imported before."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from opwright.kit.dispatch import registry
from opwright.kit.dispatch.imported import when_imported

if TYPE_CHECKING:
    from opwright.kit.op import Op

MODULE = registry.DISTRIBUTED


def introduce(entry: registry.Entry) -> None:
    """Let DTensor know of an operator, if anybody here uses DTensor."""
    if MODULE in sys.modules and hasattr(sys.modules[MODULE], "DTensor"):
        from opwright.kit.dispatch import distributed

        distributed.introduce(entry)


def changed(op: Op[..., Any]) -> None:
    """An operator's author has said more: DTensor asks anew for it and its gradients."""
    if MODULE in sys.modules:
        from opwright.kit.dispatch import distributed

        distributed.changed(op)


def watch() -> None:
    """Let DTensor know of all operators, as soon as somebody imports it."""

    def tell(module: Any) -> None:
        for entry in list(registry.by_overload.values()):
            introduce(entry)

    when_imported(MODULE, tell)
