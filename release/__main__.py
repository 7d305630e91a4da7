"""The checklist of a release.

    python -m release [--dry-run] [--only STEP …] [--days N] [--tag TAG]

Goes through the steps, says of each whether it holds and what to do where it does not, and ends with the commands to
run by hand. It never pushes or uploads.
"""

from __future__ import annotations

import argparse
import sys

from release.building import Broken
from release.steps import STEPS, Context, Found


def main(arguments: list[str] | None = None) -> int:
    """Run the steps; 1 when one of them does not hold."""
    parser = argparse.ArgumentParser(
        prog="python -m release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="build and install nothing")
    parser.add_argument("--only", action="append", choices=STEPS, help="this step; may be given several times")
    parser.add_argument("--days", type=int, default=30, help="how old stored results may be")
    parser.add_argument("--tag", default="", help="the tag that the release has already")
    asked = parser.parse_args(arguments)
    context = Context(days=asked.days, dry_run=asked.dry_run, tag=asked.tag)
    failed = 0
    for name, step in STEPS.items():
        if asked.only and name not in asked.only:
            continue
        if name == "publish" and failed:
            print("· publish: the commands come when the steps above hold")
            continue
        try:
            found = step(context)
        except Broken as e:
            found = Found(faults=[(e.what, e.do)])
        if not found.faults:
            print(f"✓ {name}: {found.said}", flush=True)
        for what, do in found.faults:
            print(f"✗ {name}: {what}\n    → {do}", flush=True)
        failed += bool(found.faults)
    if failed:
        print(f"no release yet: {failed} of {len(asked.only or STEPS)} steps failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
