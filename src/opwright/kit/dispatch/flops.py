"""What FlopCounterMode counts for an operator: what its author says a call costs, else what its reference does.

PyTorch's counter is not imported for it, which may bring Triton along: when somebody imports it, it is told.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opwright.kit import private
from opwright.kit.dispatch import fake, registry
from opwright.kit.dispatch.imported import when_imported
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op

COUNTER = "torch.utils.flop_counter"
_silent: set[str] = set()
"""The operators of which nobody knows what they cost, once that was said."""


def _formula(name: str) -> Callable[..., int] | None:
    """What PyTorch's counter calls for an operator of ours; its packet is another after each kernel that is built."""
    entry = registry.by_overload.get(name)
    if entry is None:
        return None

    def formula(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        return of_call(entry.op, args, kwargs)

    return formula


def of_call(op: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many floating-point operations a call is said to take."""
    for each in (op, op.form_of, op.functional):
        cost = None if each is None else each.cost_of(*args, **kwargs)
        if cost is not None:
            return cost.flops
    try:
        return _of_reference(op, args, kwargs)
    except Exception as e:  # it reads values, which are not there
        _warn(op, e)
        return 0


def _warn(op: Op[..., Any], error: Exception) -> None:
    if op.qualname in _silent:
        return
    _silent.add(op.qualname)
    spelled = op.name.replace("_backward", ".backward") if op.is_gradient else (op.form_of or op).name
    warnings.warn(
        f"{op.name}: FlopCounterMode counts 0 for it, since its reference cannot be counted "
        f"({type(error).__name__}); declare what it costs with @{spelled}.cost",
        RuntimeWarning,
        stacklevel=2,
    )


def _of_reference(op: Op[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    # The counters around, which are asking, must not see it.
    with private.without_modes(), sys.modules[COUNTER].FlopCounterMode(display=False) as counter:
        if any(hasattr(t, "fake_mode") for t in tensors([*args, *kwargs.values()])):
            op.run_reference(*args, **kwargs)
        else:
            fake.imagine(op, args, kwargs)
    total: int = counter.get_total_flops()
    return total


def _introduce(counter: Any) -> None:
    private.let_counters_ask(counter, _formula)


def watch() -> None:
    """Let PyTorch's counter know of the operators, as soon as it is imported."""
    when_imported(COUNTER, _introduce)
