"""The command line: `opwright`, or `python -m opwright`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; a user's mistake is one line, not a traceback."""
    from opwright.cli.choosing import broken, tell
    from opwright.cli.commands import app

    try:
        app()
    except SystemExit as end:
        sys.exit(end.code or (1 if broken else 0))
    except (ValueError, TypeError, OSError, LookupError, RuntimeError, ImportError) as mistake:
        print(f"opwright: {tell(mistake)}", file=sys.stderr)
        sys.exit(2)
