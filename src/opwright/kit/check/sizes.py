"""Sizes other than the declared ones: none, one, odd ones, powers of two, equal ones, many, and the kernel's own."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence

VARIANTS = ("zero", "one", "tail", "tail2", "big", "equal")
"""One of them 0 or 1, odd ones around the widths of vectors, so many elements that a kernel divides them among
threads, all of them equal."""
TAILS = (2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 31, 33, 63, 64, 65, 97, 127, 129, 255, 257, 511, 1023, 1025, 2047, 2049)
BIG = 80_000
"""Enough for three threads' worth of kernel.h's grain."""
VAST = (1 << 22) + 3
"""Elements beyond what is a matter of course."""
MOST_CONSTANT = 1 << 18
MOST_TOGETHER = 1 << 19
"""Elements of a tensor of which several sizes are large."""
TILE = (32, 64, 128)
"""What kernels that name no numbers may compute at a time."""


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
    # What a block takes is often so many elements for each of so many threads.
    blocks = {a * b for a, b in itertools.combinations_with_replacement(useful, 2) if a * b <= MOST_CONSTANT}
    rest += [at(rng.randrange(count), c + 1) for c in sorted(blocks - {*useful})][:: max(1, len(blocks) // 8)]
    yield from dict.fromkeys(_some(found, most, rng) + _some(rest, most // 2, rng))


def together(declared: Sequence[int], shapes: Sequence[Sequence[int]], rng: random.Random) -> Iterator[str]:
    """Variants in which several sizes are large: all of them, by multiples of a tile and by none, and two of them."""
    everyone = range(len(declared))
    for more in (0, 1):
        tile = rng.choice(TILE)
        yield fitted(declared, shapes, {i: tile * (1 + k) + more for k, i in enumerate(_shuffled(everyone, rng))}, more)
    pairs = [*itertools.combinations(everyone, 2)]
    for pair in rng.sample(pairs, min(2, len(pairs))):
        yield fitted(declared, shapes, {i: 2 ** rng.randint(6, 9) + rng.choice((1, 2, 3)) for i in pair}, 1)


def half_full(
    declared: Sequence[int], shapes: Sequence[Sequence[int]], constants: Sequence[int], most: int, rng: random.Random
) -> Iterator[str]:
    """Variants in which one size is a multiple of a tile, or of a constant of the kernel, and another lies just beyond
    one."""
    ordered = [*itertools.permutations(range(len(declared)), 2)]
    tiles = [c for c in constants if 8 <= c <= 1 << 12] + [rng.choice(TILE)]
    found = [(c, *pair) for c in tiles for pair in rng.sample(ordered, min(2, len(ordered)))]
    for c, i, j in found if len(found) <= most else rng.sample(found, most):
        yield fitted(declared, shapes, {i: c + 1, j: 2 * c}, 1)


def tiles(
    declared: Sequence[int], shapes: Sequence[Sequence[int]], constants: Sequence[int], most: int, rng: random.Random
) -> Iterator[str]:
    """Variants in which two sizes, or all, lie just beyond a constant of the kernel, or are multiples of it."""
    useful = [c for c in constants if 8 <= c <= 1 << 12]
    everyone, found = range(len(declared)), []
    for c in useful:
        found += [({i: c + 1 + k for k, i in enumerate(pair)}, 1) for pair in itertools.combinations(everyone, 2)]
        found += [({i: c * (1 + k) for k, i in enumerate(_shuffled(everyone, rng))}, 0)]
        found += [({i: c + 1 + k for k, i in enumerate(everyone)}, 1)] if len(declared) > 2 else []
    for chosen, more in found if len(found) <= most else rng.sample(found, most):
        yield fitted(declared, shapes, chosen, more)


def fitted(declared: Sequence[int], shapes: Sequence[Sequence[int]], wanted: Mapping[int, int], more: int) -> str:
    """The variant of these sizes, by their places; the largest are halved until no tensor is too large. Multiples of a
    power of two stay so as far as they can, and others (`more`) stay just beyond one.

    >>> fitted([5, 7], [(5, 7)], {0: 2049, 1: 2049}, 1)
    's0=513,s1=514'
    """
    chosen = dict(wanted)
    small = dict.fromkeys(declared, 4)

    def elements() -> int:
        now = small | {declared[i]: size for i, size in chosen.items()}
        return max((math.prod(now.get(s, s) for s in shape) for shape in shapes), default=0)

    while elements() > MOST_TOGETHER and max(chosen.values()) > 8:
        largest = max(chosen, key=lambda i: (chosen[i], i))
        chosen[largest] = (chosen[largest] - more) // 2 + more
    taken: set[int] = set()
    for i, size in chosen.items():
        while size in taken:
            size += 1 if more else 8
        taken.add(size)
        chosen[i] = size
    return ",".join(at(i, size) for i, size in sorted(chosen.items()))


def _shuffled(places: Sequence[int], rng: random.Random) -> list[int]:
    return rng.sample(places, len(places))


def _some(found: list[str], most: int, rng: random.Random) -> list[str]:
    return found if len(found) <= most else rng.sample(found, most)
