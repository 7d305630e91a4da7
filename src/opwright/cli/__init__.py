"""The command line: `opwright`, or `python -m opwright`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; a user's mistake is one line, not a traceback."""
    from opwright.cli.commands import app

    try:
        app()
    except (ValueError, TypeError, OSError, LookupError, RuntimeError, ImportError, SyntaxError) as mistake:
        kind = "" if isinstance(mistake, (ValueError, OSError, RuntimeError)) else f"{type(mistake).__name__}: "
        print(f"opwright: {kind}{mistake}", file=sys.stderr)
        sys.exit(2)
