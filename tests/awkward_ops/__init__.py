"""Operators that are right and numerically awkward: the check must find nothing in any of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import opwright as ow

FOLDER = Path(__file__).parent
AWKWARD = [
    (file.parent.name, line.split()[1].partition("(")[0])
    for file in sorted(FOLDER.glob("*/op.py"))
    for before, line in zip(*[file.read_text(encoding="utf-8").splitlines()[i:] for i in (0, 1)], strict=False)
    if before.startswith("@ow.op")
]
"""The theme and the name of each, read off the files so that nothing is built to list them."""


@cache
def load(theme: str) -> Any:
    """The operators of a theme; their folder is loaded when first asked for."""
    return ow.load(FOLDER / theme)


def operator(theme: str, name: str) -> ow.Op[..., Any]:
    """One of them."""
    found: ow.Op[..., Any] = getattr(load(theme), name)
    return found
