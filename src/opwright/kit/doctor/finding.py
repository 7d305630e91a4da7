"""What a diagnosis is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "missing", "broken"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `missing` limits what can be done, `broken` must be fixed."""

    what: str
    verdict: Verdict
    found: str
    fix: str = ""
