"""What CHANGELOG.md says of releases: a heading `## 0.2.0 (2027-01-31)` each, the newest first."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """One entry: its version, what stands in brackets behind it, and its text."""

    version: str
    when: str
    text: str

    @property
    def date(self) -> datetime.date | None:
        """The day of the release; None where the heading names none."""
        try:
            return datetime.date.fromisoformat(self.when)
        except ValueError:
            return None


def read(text: str) -> list[Release]:
    """The entries, in the order of the file.

    >>> [(r.version, r.when) for r in read("# Changelog\\n## 0.2.0 (unreleased)\\n- a\\n## 0.1.0 (2026-11-20)\\n")]
    [('0.2.0', 'unreleased'), ('0.1.0', '2026-11-20')]
    """
    pieces = re.split(r"^## +(.*)$", text, flags=re.MULTILINE)[1:]
    found = []
    for heading, body in zip(pieces[::2], pieces[1::2], strict=True):
        version, _, rest = heading.strip().partition(" ")
        found.append(Release(version, rest.strip().strip("()[]-– "), body.strip()))
    return found


def last(releases: list[Release], version: str) -> str | None:
    """The newest release before this one, by the file."""
    return next((r.version for r in releases if r.version != version and r.date is not None), None)


def faults(releases: list[Release], version: str, today: datetime.date) -> list[tuple[str, str]]:
    """What keeps the file from being that of a release, each with what to do."""
    found = []
    entry = releases[0] if releases else None
    if entry is None or entry.version != version:
        newest = "nothing" if entry is None else entry.version
        found.append((f"its newest entry is {newest}, not {version}", f"begin it with ## {version} ({today})"))
    elif entry.date is None:
        found.append((f"{version} has no date, it says ({entry.when})", f"write ## {version} ({today})"))
    elif entry.date > today:
        found.append((f"{version} is dated {entry.date}, which is to come", f"write ## {version} ({today})"))
    elif not entry.text:
        found.append((f"the entry of {version} is empty", "say what users will notice"))
    for release in releases[1:] if entry is not None and entry.version == version else releases:
        if release.version != version and release.date is None:
            what = f"{release.version} ({release.when})".replace(" ()", "")
            found.append((f"there is a leftover, {what}", f"move its lines to the entry of {version}"))
    return found
