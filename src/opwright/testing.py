"""The check as tests of your own: one line an operator.

    from opwright.testing import checks
    from my_package.ops import my_op

    test_my_op = checks(my_op)

pytest then shows one test for each property of the operator and of its gradient: `test_my_op[my_op_backward-memory]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opwright.kit.check import check as _check
from opwright.kit.check.property import concerned, facts_of, in_turn
from opwright.kit.op import Op

__all__ = ["checks"]


def checks(op: Op[..., Any], /, *, device: str = "cpu", seed: int = 0, only: Sequence[str] = ()) -> Callable[..., None]:
    """A test function for pytest, parametrised by the properties of an operator and of its gradient.

    Args:
        op: the operator.
        device: where to run it.
        seed: what values, sizes and layouts are drawn from.
        only: names of the properties to test; by default all that need not be asked for.

    >>> import opwright as ow
    >>> from opwright.testing import checks
    >>> test_cube = checks(ow.cube, only=["forward", "gradients"])
    >>> test_cube("cube", "forward")
    """
    import pytest

    from opwright.kit.check.run import rungs

    if isinstance(only, str) or not set(only) <= set(in_turn()):
        raise ValueError(f"checks: only must be a list of properties, which are {', '.join(in_turn())}; got {only!r}")
    wanted = [name for name in in_turn() if (name in only if only else not facts_of(name).asked)]
    pairs = [(rung.name, name) for rung in rungs(op) for name in concerned(rung, wanted)]

    @pytest.mark.parametrize("operator, property", pairs, ids=[f"{rung}-{name}" for rung, name in pairs])
    def test(operator: str, property: str) -> None:
        report = _check(op, device=device, seed=seed, only=[property], rung=operator)
        report.raise_if_failed()
        [result] = report.results
        if result.skipped is not None:
            pytest.skip(result.skipped)

    test.__doc__ = f"What `opwright check` asks of {op.name}."
    return test
