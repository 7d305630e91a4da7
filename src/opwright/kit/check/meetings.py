"""Where two changes of a sample meet, each of which a kernel may take by itself: an option and another, a flag and
ties, numbers and odd sizes, equal sizes and a tensor with fewer elements, a dtype and a long row."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from opwright.kit.check import sizes, variants
from opwright.kit.check.alike import ONES
from opwright.kit.check.case import Case
from opwright.kit.check.drawn import source_of

if TYPE_CHECKING:
    from opwright.kit.check.cases import Subject

PAIRS = 12
"""Cases of a sample in which two options change, each two of them once."""
ODD = ("tail", "tail2")
LONGER = ("shifted", "halves", "last", "integral")
"""What happens to numbers in odd sizes too, which a few of them do not show."""
EQUAL = 3
"""Options, and tensors with fewer elements, that are tried where all sizes are equal."""
HALF_FULL = 6
"""Cases in which one size fills its tiles and another does not."""


def cases(subject: Subject, s: int, rng: random.Random) -> Iterator[Case]:
    """Two changes of a sample."""
    main, given = subject.main, subject.options(s)
    if main.is_floating_point:
        yield from (Case(s, main, variant=rng.choice(ODD), values=v) for v in LONGER)
        yield from (Case(s, main, variant=odd, values="neg") for odd in ODD)
    yield from (Case(s, main, values=v) for v in (*at_ties(given), *pairs(given, rng)))
    for found in (given, variants.broadcast(subject, s, rng)):
        yield from (Case(s, main, variant="equal", values=v) for v in rng.sample(found, min(EQUAL, len(found))))


def at_ties(given: list[str]) -> Iterator[str]:
    """A flag or a word often says what becomes of ties: between numbers, and where all are equal."""
    told = [a for a in given if "=" in a and not _is_number(a.partition("=")[2]) and not a.endswith("=None")]
    return (f"{a}+{ties}" for a in told for ties in ("halves", ONES))


def pairs(given: list[str], rng: random.Random) -> list[str]:
    """Each two options by their names, with some values: two flags are not tried by one of them and a number."""
    named = {name: [*each] for name, each in itertools.groupby(given, variants.name_of)}
    found = [f"{rng.choice(a)}+{rng.choice(b)}" for a, b in itertools.combinations(named.values(), 2)]
    return rng.sample(found, min(PAIRS, len(found)))


def _is_number(text: str) -> bool:
    return text.lstrip("=-")[:1].isdigit()


def large(subject: Subject, rng: random.Random) -> Iterator[Case]:
    """A sample with a long size in each other dtype than the main one, half precision aside, and one with tiles that
    are full along one side alone."""
    known, op = subject.declared_sizes(source_of(subject.op)), source_of(subject.op)
    s = rng.randrange(subject.count)
    for d in (d for d in subject.fast_dtypes if d != subject.main and not (d.is_floating_point and d.itemsize == 2)):
        yield from (Case(s, d, variant=sizes.at(i, 2 ** rng.randint(11, 13) + 1)) for i in range(len(known[s])))
    several = [s for s, own in enumerate(known) if len(own) > 1]
    if several:
        s = max(several, key=lambda s: len(known[s]))
        shapes, share = subject.declared_shapes(op)[s], 4 if subject.thorough else 1
        found = sizes.half_full(known[s], shapes, subject.constants.whole, HALF_FULL * share, rng)
        yield from (Case(s, subject.main, variant=v) for v in found)
