"""The check: every property of an operator, one small file each, over samples, dtypes, devices and layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opwright.kit.check.report import Report
    from opwright.kit.op import Op


def check(
    op: Op[..., Any],
    /,
    *,
    device: str = "cpu",
    seed: int = 0,
    thorough: float | None = None,
    only: Sequence[str] = (),
    case: str | None = None,
    rung: str | None = None,
    sanitize: bool = False,
) -> Report:
    """Prove an operator and its gradients against its reference.

    Args:
        op: the operator; the rungs above it that exist or have kernels are checked too.
        device: where to run it.
        seed: what values, sizes and layouts are drawn from.
        thorough: seconds to go on for, with further seeds and slower properties.
        only: names of the properties to check; all of them by default.
        case: the one case to run, as a failure names it.
        rung: the one rung to check, by its name, such as `cube_backward`.
        sanitize: also under AddressSanitizer and UndefinedBehaviorSanitizer; on a GPU under compute-sanitizer.

    >>> import opwright as ow
    >>> ow.check(ow.cube, only=["forward"]).passed
    True
    """
    from opwright.kit.check.run import run

    return run([op], device=device, seed=seed, thorough=thorough, only=only, case=case, rung=rung, sanitized=sanitize)
