"""Whether a kernel may write to its arguments: not where it could read what it has written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op


def refuses(op: Op[..., Any], values: dict[str, Any]) -> str | None:
    """Why no kernel may write to these arguments, as router.cpp has it; None when one may.

    An element of one that is an element of another as well: a reference reads and writes step by step, and a kernel in
    an order of its own. What the reference makes of it is what counts, for `op_(x, x)` too."""
    if not op.spec.written:
        return None
    named = [(name, t) for name, value in values.items() for t in tensors(value)]
    written = [(p.name, t) for p in op.spec.written for t in tensors(values.get(p.name))]
    for name, t in written:
        if t.is_inference() and not torch.is_inference_mode_enabled():
            return f"it writes to {name}, a tensor of inference mode"
        if private.internal_overlap(t) == 1:
            return f"it writes to {name}, whose elements share memory"
        others = list(named)
        others.pop(next(i for i, (_, other) in enumerate(named) if other is t))
        for other, o in others:
            if may_share(t, o):
                return f"it writes to {name}, which shares memory with {other if other != name else 'another of them'}"
    return None


def may_share(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors may have an element in common; False only where they have none.

    >>> x = torch.ones(4, 6)
    >>> may_share(x, x), may_share(x[:2], x[1:]), may_share(x[:2], x[2:]), may_share(x, x.clone())
    (True, True, False, False)
    >>> may_share(x[:, 0], x[:, 1]), may_share(x[:, :3], x[:, 3:]), may_share(x[:, :4], x[:, 3:]), may_share(x, x.t())
    (False, False, True, True)
    """
    if a is b:
        return a.numel() > 0
    if a.numel() == 0 or b.numel() == 0:
        return False
    try:
        distance = b.data_ptr() - a.data_ptr()
    except RuntimeError:
        return False  # no memory of its own
    if distance >= _reach(a, math.inf) or -distance >= _reach(b, math.inf):
        return False
    steps = sorted(step for t in (a, b) for size, step in _steps(t) if size > 1 and step > 0)
    for i, limit in enumerate(steps):
        # Along the dimensions with large steps both move by multiples of one number. They are apart where, within it,
        # the rest of one ends before the rest of the other begins.
        common = math.gcd(*steps[i:])
        rest = distance % common
        if rest >= _reach(a, limit) and rest + _reach(b, limit) <= common:
            return False
    return True


def _steps(t: Tensor) -> list[tuple[int, int]]:
    """Each dimension's size, and its step in bytes."""
    return [(size, stride * t.element_size()) for size, stride in zip(t.shape, t.stride(), strict=True)]


def _reach(t: Tensor, limit: float) -> int:
    """How many bytes its elements reach along the dimensions with smaller steps than this."""
    return t.element_size() + sum((size - 1) * step for size, step in _steps(t) if step < limit)
