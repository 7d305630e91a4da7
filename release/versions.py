"""Version numbers, and which may follow which."""

from __future__ import annotations

import re
from typing import NamedTuple

from release.api.difference import Weight


class Version(NamedTuple):
    """MAJOR.MINOR.PATCH."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return ".".join(map(str, self))


def parse(text: str) -> Version:
    """A version from its text; ValueError where it is none.

    >>> parse("0.10.2") > parse("0.9.12")
    True
    """
    found = re.fullmatch(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", text)
    if found is None:
        raise ValueError(f"a version must be MAJOR.MINOR.PATCH, such as 0.2.0, got {text!r}")
    return Version(*map(int, found.groups()))


def successors(last: Version) -> dict[str, Version]:
    """The versions that may come next."""
    return {
        "patch": Version(last.major, last.minor, last.patch + 1),
        "minor": Version(last.major, last.minor + 1, 0),
        "major": Version(last.major + 1, 0, 0),
    }


def needed(last: Version, weight: Weight | None) -> str:
    """How far a version must move for a change of this weight: below 1.0 nothing is promised beyond a minor release.

    >>> needed(Version(0, 3, 1), "breaking"), needed(Version(1, 3, 1), "breaking"), needed(Version(1, 3, 1), None)
    ('minor', 'major', 'patch')
    """
    if weight is None:
        return "patch"
    return "major" if weight == "breaking" and last.major >= 1 else "minor"


def refuse(last: Version | None, version: Version, weight: Weight | None) -> str | None:
    """Why a version cannot follow the last one with changes of this weight; None when it can."""
    if last is None:
        return None
    if version <= last:
        return f"{version} is not newer than {last}, which is released"
    follow = successors(last)
    if version not in follow.values():
        return f"{version} skips numbers: after {last} comes {', '.join(map(str, follow.values()))}"
    least = needed(last, weight)
    if version < follow[least]:
        return f"the public names changed ({weight}), which asks for a {least} version: {follow[least]}, not {version}"
    return None
