"""Functions that Dynamo leaves alone: what the dispatcher calls in Python is no part of a user's graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any

import torch

from opwright.kit import private


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which Dynamo neither compiles nor follows when an eager part of a compiled function meets it.

    What torch.compiler.disable does, without its import of Dynamo, which would cost the first call more than a second.
    """
    try:
        _leave_alone(function.__code__)
    except (AttributeError, TypeError):  # a torch that keeps it elsewhere; Dynamo comes with the first call
        disable: Callable[..., Any] = getattr(torch, "_disable_dynamo", torch.compiler.disable)
        left: Callable[..., Any] = disable(function)
        return left
    return function


@lru_cache(None)  # what is defined inside a function has one code, however often it is made
def _leave_alone(code: CodeType) -> None:
    frames = private.eval_frame()
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
