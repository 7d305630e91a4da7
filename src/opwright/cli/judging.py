"""`opwright check … --like …`: any function on tensors, held against another."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch

from opwright.kit.check.judge.court import Progress
from opwright.kit.check.judge.run import judge
from opwright.kit.check.judge.verdict import Judgement

PANEL = "With --like"
"""What these options stand under in the help."""


def judged(
    names: Sequence[str], like: str, samples: str | None, dtypes: Sequence[str], progress: Progress, **options: Any
) -> Judgement:
    """Hold the function of a name against another. Modules are found from where the user stands."""
    if len(names) != 1:
        raise ValueError(f"with --like one function is checked, as module:function, got {len(names)}")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    wanted = [_dtype(name) for name in dtypes]
    with contextlib.redirect_stdout(sys.stderr):  # what a module prints is not what the command says
        return judge(names[0], like, samples, dtypes=wanted, progress=progress, **options)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"--dtype must name a dtype such as bfloat16, got {name!r}")
    return found


def refuse_alone(**given: Any) -> None:
    """Raise where an option was given that goes with --like alone."""
    for name, value in given.items():
        if value:
            raise ValueError(f"--{name} goes with --like, the function to hold another against")
