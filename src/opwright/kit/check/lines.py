"""Lines of kernels that no case reached, as a report tells of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MOST = 12
"""Stretches of one file that are named."""


@dataclass(frozen=True)
class Told:
    """What the search of one rung says: by file, its lines with code and those of them that ran."""

    home: str
    rung: str
    files: dict[str, tuple[list[int], list[int]]]
    bound: list[str]
    """The rungs whose kernels stand in these files."""


def never_ran(told: Iterable[Told]) -> Iterator[str]:
    """A sentence for each file with lines that ran in no search. Rungs and operators share files, and each has its
    part: unless all of them were searched, nothing is said."""
    told = list(told)
    searched = {each.rung for each in told}
    known: dict[str, set[int]] = {}
    ran: dict[str, set[int]] = {}
    homes: dict[str, dict[str, None]] = {}
    for each in (each for each in told if searched.issuperset(each.bound)):
        for file, (all_lines, some) in each.files.items():
            known.setdefault(file, set()).update(all_lines)
            ran.setdefault(file, set()).update(some)
            homes.setdefault(file, {}).setdefault(each.home)
    for file, lines in known.items():
        found = [*stretches(lines, ran[file])]
        if found:
            shown = ", ".join(_spell(*stretch) for stretch in found[:MOST])
            shown += f" and {len(found) - MOST} more" if len(found) > MOST else ""
            yield f"{', '.join(homes[file])}: {Path(file).name}:{shown} never ran: declare a sample that leads there"


def stretches(known: set[int], ran: set[int]) -> Iterator[tuple[int, int]]:
    """First and last of lines that did not run, with none between them that did.

    >>> list(stretches({1, 2, 4, 5, 9, 12}, {1, 9}))
    [(2, 5), (12, 12)]
    """
    first = last = 0
    for line in sorted(known):
        if line not in ran:
            first, last = first or line, line
        elif first:
            yield first, last
            first = 0
    if first:
        yield first, last


def _spell(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"
