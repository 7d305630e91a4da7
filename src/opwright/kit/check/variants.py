"""Which variants of an operator's samples are tried: other numbers, indices, masks and options, and sizes where a
kernel is likely to branch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from opwright.kit.check import options as options_
from opwright.kit.check import sizes, values
from opwright.kit.check.case import Case, whole
from opwright.kit.check.drawn import source_of
from opwright.kit.spec.require import spell
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.check.cases import Subject

THIN = 8
"""Cases of a sample in which a tensor has fewer elements."""
NAMED = 6
"""Cases of a sample in which one option is a number of the kernels' sources."""
PAIRS = 4
"""Cases of a sample in which two options change."""
LONG = (1 << 16) + 9
SAMPLES = 3
"""Of how many samples several sizes are large at once."""
TILES = 16
"""Cases in which several sizes are constants of a kernel."""


def other_values(subject: Subject, s: int, rng: random.Random, most: int | None = None) -> Iterator[Case]:
    """A sample with other numbers, indices and options; of each kind at most so many."""
    floats = [d for d in subject.fast_dtypes if d.is_floating_point]
    floats += [d for d in subject.fast_dtypes if d.is_complex]
    main, options = subject.main, subject.options(s)
    for kind in (
        [Case(s, d, values=v) for d in floats[:1] for v in values.scales(d, rng)]
        + [Case(s, d, values=v) for d in floats[1:] for v in rng.sample(values.scales(d, rng), 2)]
        + [Case(s, d, variant="tail", values=rng.choice(values.scales(d, rng)[:2])) for d in floats[:2]],
        [Case(s, d, values=v) for d in floats[:1] for v in values.FLOATS if named(subject, v)],
        [Case(s, d, values=v) for d in subject.fast_dtypes if whole(d) for v in values.WHOLE],
        [Case(s, main, values=v) for v in subject.indices(s)],
        [Case(s, main, variant=v, values="stretched") for v in long_tables(subject, s)],
        [Case(s, main, values=v) for v in options]
        + [Case(s, main, variant="tail", values=v) for v in rng.sample(options, min(3, len(options)))],
        [Case(s, main, values=v) for v in named_options(subject, s, rng)],
        [Case(s, main, values=v) for v in several(subject, s, options, rng)],
        [Case(s, main, values=v) for v in (*codes(subject, s), *masks(subject, s))],
        [Case(s, main, values=v) for v in broadcast(subject, s, rng)],
    ):
        yield from kind if most is None or len(kind) <= most else rng.sample(kind, most)


def named(subject: Subject, variant: str) -> bool:
    """Whether there are constants, for the variant that needs them."""
    return variant != "constants" or bool(subject.constants.real or subject.constants.whole)


def named_options(subject: Subject, s: int, rng: random.Random) -> list[str]:
    """A sample's numbers, as the kernels' sources have them, and as its integers may follow them."""
    given, op = subject.plain(s), source_of(subject.op)
    if given is None:
        return []
    found: dict[str, list[str]] = {}
    for option in options_.named_of(op, given, subject.constants):
        found.setdefault(name_of(option), []).append(option)
    chosen = [option for known in found.values() for option in rng.sample(known, min(NAMED, len(known)))]
    return [*chosen, *options_.standing_of(op, given)]


def several(subject: Subject, s: int, options: list[str], rng: random.Random) -> list[str]:
    """Two options of a sample that change at once, and one beside its indices or masks: what a kernel handles by itself
    it may not handle together. Ties are where a step is 1 or a half, and so are the numbers."""
    kinks = [f"{a}+halves" for a in options if a.endswith(("=1", "=5e-1"))]
    pairs = [f"{a}+{b}" for a, b in itertools.combinations(options, 2) if name_of(a) != name_of(b)]
    beside = [f"{a}+{b}" for a in options for b in (*subject.indices(s), *masks(subject, s))]
    return [*kinks, *rng.sample(pairs, min(PAIRS, len(pairs))), *rng.sample(beside, min(PAIRS, len(beside)))]


def name_of(option: str) -> str:
    return option.replace("*", "=").partition("=")[0]


def codes(subject: Subject, s: int) -> list[str]:
    """The variants of integers whose dtype the sample itself chose. They are numbers where the reference takes any, and
    either nothing else is, or they are too short to be indices."""
    given = subject.plain(s)
    if given is None:
        return []
    found = [t.dtype for t in _tensors(given)]
    real = any(d.is_floating_point or d.is_complex for d in found)
    apart = dict.fromkeys(d for d in found if whole(d) and d != subject.main and (not real or d.itemsize < 4))
    run = subject.quiet()
    return [f"{v}:{spell(d)}" for d in apart if values.is_data(run, given, d) for v in values.WHOLE]


def long_tables(subject: Subject, s: int) -> list[str]:
    """Sizes beyond what 16 bits hold, for samples with indices, which are then stretched as far."""
    count = len(subject.declared_sizes(source_of(subject.op))[s]) if subject.indices(s) else 0
    return [sizes.at(which, LONG) for which in range(count)]


def masks(subject: Subject, s: int) -> tuple[str, ...]:
    """The variants of a sample's masks, if it has any."""
    given = subject.plain(s)
    apart = given is not None and any(t.dtype == torch.bool != subject.main for t in _tensors(given))
    return values.MASKS if apart else ()


def broadcast(subject: Subject, s: int, rng: random.Random) -> list[str]:
    """The variants in which one tensor has fewer elements than the sample gives it."""
    given = subject.plain(s)
    found = [*values.thin_of(source_of(subject.op), given)] if given is not None else []
    return rng.sample(found, min(THIN, len(found)))


def _tensors(sample: Sample) -> list[torch.Tensor]:
    return [t for v in (*sample.args, *sample.kwargs.values()) for t in tensors(v)]


def around(subject: Subject, most: int, rng: random.Random) -> Iterator[Case]:
    """Samples in sizes around the constants of the kernels, some of them with other numbers."""
    counts = {s: len(known) for s, known in enumerate(subject.declared_sizes(source_of(subject.op))) if known}
    if not counts:
        return
    main = subject.main
    for variant in sizes.around(subject.constants.whole, max(counts.values()), most, rng):
        s = rng.choice([s for s, count in counts.items() if count == max(counts.values())])
        scaled = main.is_floating_point and rng.random() < 0.3
        yield Case(s, main, variant=variant, values=values.scales(main, rng)[0] if scaled else "")
    yield from _beyond(subject, counts)


def in_halves(subject: Subject, s: int, rng: random.Random) -> Iterator[Case]:
    """A sample with a long size in each dtype of 16 bits, and numbers of one sign: what is added up in such a dtype
    stops growing."""
    count = len(subject.declared_sizes(source_of(subject.op))[s])
    for d in (d for d in subject.fast_dtypes if d.is_floating_point and d.itemsize == 2 and d != subject.main):
        yield from (Case(s, d, variant=sizes.at(i, 2 ** rng.randint(11, 13) + 1), values="abs") for i in range(count))


def _beyond(subject: Subject, counts: dict[int, int]) -> Iterator[Case]:
    """Sizes well beyond the largest constants, with the largest numbers last: a kernel may have looked at the first
    so many alone."""
    largest = [c for c in subject.constants.whole if 16 <= c <= sizes.MOST_CONSTANT >> 4][-3:]
    ends = [(2 * c + 1, "late") for c in largest] + [(n, "last") for c in largest for n in (c + 1, 2 * c - 1)]
    most, main = max(counts.values()), subject.main
    s = next(s for s, count in counts.items() if count == most)
    if main.is_floating_point:
        yield from (Case(s, main, variant=sizes.at(i, n), values=v) for n, v in ends for i in range(most)[-2:])


def together(subject: Subject, rng: random.Random) -> Iterator[Case]:
    """Samples with several large sizes at once, as kernels meet them that compute in tiles."""
    known = subject.declared_sizes(source_of(subject.op))
    several = [s for s, own in enumerate(known) if len(own) > 1]
    share = 4 if subject.thorough else 1
    for s in rng.sample(several, min(SAMPLES * share, len(several))):
        shapes = subject.declared_shapes(source_of(subject.op))[s]
        yield from (Case(s, subject.main, variant=v) for v in sizes.together(known[s], shapes, rng))
    deepest = [s for s in several if len(known[s]) == max(map(len, known))]
    found = [
        Case(s, subject.main, variant=v)
        for s in deepest[:1]
        for v in sizes.tiles(
            known[s], subject.declared_shapes(source_of(subject.op))[s], subject.constants.whole, TILES * share, rng
        )
    ]
    yield from found
