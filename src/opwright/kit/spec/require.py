"""What a reference uses to reject wrong input: `require` and the questions worth asking."""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any

import torch
from torch import Tensor


def spell(value: Any) -> str:
    """A value as messages show it: `(3, 4)` for a shape, `float32` for a dtype.

    >>> spell(torch.Size([3, 4])), spell(torch.float32)
    ('(3, 4)', 'float32')
    """
    if isinstance(value, torch.Size):
        return str(tuple(value))
    if isinstance(value, (torch.dtype, torch.layout)):
        return str(value).removeprefix("torch.")
    return str(value)


def require(condition: object, message: str, error: type[Exception] = ValueError) -> None:
    """Raise `error` with the operator's name and `message` unless `condition` holds.

    `message` is a plain string whose `{…}` are filled from the caller's local variables, and only when the
    condition fails: a check that passes costs a function call.

    >>> def axpby(x, y):
    ...     require(broadcastable(x, y), "x and y must broadcast, got {x.shape} and {y.shape}")
    >>> axpby(torch.ones(3), torch.ones(4))
    Traceback (most recent call last):
    ValueError: axpby: x and y must broadcast, got (3,) and (4,)
    """
    if condition:
        return
    if torch.compiler.is_dynamo_compiling():  # frames cannot be traced; the graph's error carries the bare message
        raise error(message)
    frame = sys._getframe(1)
    try:
        text = _tidy(message.format_map(frame.f_locals))
    except (KeyError, IndexError, ValueError, AttributeError, TypeError):
        text = message  # braces that mean something else must not hide the check that failed
    raise error(f"{_operator_at(frame)}: {text}")


def _tidy(text: str) -> str:
    """Shapes and dtypes as `spell` writes them, in a text that Python has formatted."""
    text = re.sub(r"torch\.Size\(\[([^\]]*)\]\)", lambda m: f"({m[1]}{',' if ',' not in m[1] and m[1] else ''})", text)
    return re.sub(r"\btorch\.((?:u?int|b?float|complex)\d+|bool)\b", r"\1", text)


def _operator_at(frame: FrameType) -> str:
    """The operator whose call is running: its generated code lies below the reference on the stack."""
    walk: FrameType | None = frame
    while walk is not None:
        found = re.fullmatch(r"<opwright call of (\w+)>", walk.f_code.co_filename)
        if found:
            return found[1]
        walk = walk.f_back
    return frame.f_code.co_name


def broadcastable(*tensors: Tensor) -> bool:
    """Whether the tensors' shapes broadcast together, as PyTorch's own arithmetic would have it.

    >>> broadcastable(torch.ones(64, 1), torch.ones(128)), broadcastable(torch.ones(3), torch.ones(4))
    (True, False)
    """
    for back in range(1, 1 + max([0, *[t.dim() for t in tensors]])):
        known: Any = None
        for t in tensors:
            size = t.shape[-back] if back <= t.dim() else 1
            if _holds(size == 1, False):
                continue
            if known is not None and not _holds(size == known, True):
                return False
            known = size
    return True


def _holds(condition: Any, unknown: bool) -> bool:
    """A condition on sizes; of a size that is known only at run time, what PyTorch's own broadcasting assumes."""
    if isinstance(condition, bool) and not torch.compiler.is_dynamo_compiling():  # to which symbols are bools
        return condition
    from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true

    return guard_or_true(condition) if unknown else guard_or_false(condition)
