"""Sizes other than the declared ones: none, one, odd ones, powers of two, equal ones, many, and the kernel's own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

VARIANTS = ("zero", "one", "tail", "tail2", "big", "equal")
"""One of them 0 or 1, odd ones around the widths of vectors, so many elements that a kernel divides them among
threads, all of them equal."""
TAILS = (2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 31, 33, 63, 64, 65, 97, 127, 129, 255, 257, 511, 1023, 1025, 2047, 2049)
BIG = 80_000
"""Enough for three threads' worth of kernel.h's grain."""
VAST = (1 << 22) + 3
"""Elements beyond what is a matter of course."""
MOST_CONSTANT = 1 << 18


def at(which: int, size: int) -> str:
    """The variant in which one declared size is another and the rest are small, such as `s1=4097`; several of them with
    commas between them are one variant too."""
    return f"s{which}={size}"


def choose_sizes(declared: Sequence[int], variant: str, rng: random.Random) -> dict[int, int]:
    """Other sizes for the declared ones; unless `equal`, different ones stay different, so that what must agree does
    and no more."""
    if variant in ("zero", "one"):
        return {rng.choice(declared): int(variant == "one")}
    if variant == "equal":
        return dict.fromkeys(declared, rng.choice((2, 3, 4, 5, 8, 16)))
    if variant == "big":
        weights = [rng.random() + 0.2 for _ in declared]
        return _distinct({s: max(2, int(BIG ** (w / sum(weights)))) for s, w in zip(declared, weights, strict=True)})
    if variant == "vast":
        which = rng.randrange(len(declared))
        return {s: VAST if i == which else 1 for i, s in enumerate(declared)}
    if variant.startswith("s"):
        first, *more = (part[1:].partition("=") for part in variant.split(","))
        found = _one(declared, int(first[0]) % len(declared), int(first[2]), rng)
        return found | {declared[int(place) % len(declared)]: int(size) for place, _, size in more}
    most = max(3.0, 8192 ** (1 / len(declared)))
    return _distinct({s: rng.choice([t for t in TAILS if t <= 2 * most]) for s in declared})


def _one(declared: Sequence[int], which: int, size: int, rng: random.Random) -> dict[int, int]:
    """One size as asked for, the others small."""
    others = rng.sample((1, 2, 3, 4), min(4, len(declared)))
    return {s: size if i == which else others[i % 4] for i, s in enumerate(declared)}


def _distinct(sizes: dict[int, int]) -> dict[int, int]:
    taken: set[int] = set()
    for declared, size in sizes.items():
        while size in taken:
            size += 1
        taken.add(size)
        sizes[declared] = size
    return sizes


def powers(count: int, rng: random.Random) -> Iterator[str]:
    """Variants in which one of `count` sizes is a power of two; one of them beside a large one."""
    for which in range(count):
        yield at(which, 2 ** rng.randint(5, 12))
    if count:
        yield at(rng.randrange(count), 2 ** rng.randint(10, 17) + rng.choice((-1, 1)))


def around(constants: Sequence[int], count: int, most: int, rng: random.Random) -> Iterator[str]:
    """Variants in which one of `count` sizes is a constant of the kernel, or just beyond it; for a few also just below
    it, and far beyond."""
    useful = [c for c in constants if 4 <= c <= MOST_CONSTANT]
    found = [at(which, c + more) for c in useful for which in range(count) for more in (0, 1)]
    rest = [at(rng.randrange(count), c) for each in useful for c in (each - 1, 2 * each + 1)] if count else []
    yield from dict.fromkeys(_some(found, most, rng) + _some(rest, most // 2, rng))


def _some(found: list[str], most: int, rng: random.Random) -> list[str]:
    return found if len(found) <= most else rng.sample(found, most)
