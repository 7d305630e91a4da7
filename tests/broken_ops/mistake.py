"""An operator that is wrong on purpose."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import opwright as ow

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Broken:
    """An operator with a mistake, and what must catch it."""

    theme: str
    name: str
    property: str
    says: str
    """A part of the sentence in which the check says so."""
    mistake: str

    @builtins.property
    def op(self) -> ow.Op[..., Any]:
        """The operator itself; its folder is loaded when first asked for."""
        found: ow.Op[..., Any] = getattr(load(self.theme), self.name)
        return found


@cache
def load(theme: str) -> Any:
    """The operators of a theme."""
    return ow.load(FOLDER / theme)
