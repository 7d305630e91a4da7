"""The public names of opwright, one line each, in tests/api.txt: what a version number speaks about.

    python -m release.api    # writes the file; the test prints what changed

The lines are the same under every Python and torch that opwright supports.
"""

from __future__ import annotations

from pathlib import Path

from release.api import commands, python, sources
from release.api.deprecations import listed
from release.api.entries import Entry, write

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = ROOT / "tests" / "api.txt"


def entries() -> list[Entry]:
    """Every public name as it stands now."""
    return [*python.entries(ROOT), *commands.entries(), *sources.entries(ROOT), *listed()]


def snapshot() -> str:
    """The text that tests/api.txt should have."""
    return write(entries())
