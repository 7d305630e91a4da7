"""Tensors that hold one number, count up, or are an identity: what a benchmark draws whose author wrote ones, and what
a program that has seen it may recognise, to skip the work."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from opwright.kit.check.case import Case, whole
from opwright.kit.check.drawn import source_of
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.check.cases import Subject

ONES = "all:1e0@"
"""All tensors of a call are ones."""
ZEROS = "all:0e0"
KINDS = ("all:1e0", ZEROS, "all:-1e0", "all:2e0", "all:5e-1", "arange", "eye")
ENOUGH = 4
"""Elements, and more, that a tensor has so that its kind shows."""


def cases(subject: Subject, rng: random.Random) -> Iterator[Case]:
    """All tensors of each sample as ones; every other kind once, in all tensors of a call and in each one alone, with a
    sample in which it shows: so much for each sample would take a good part of the check's time."""
    main, found = subject.main, [_numbers(subject, s) for s in range(subject.count)]
    for s, held in enumerate(found):
        if held:
            yield Case(s, main, values=ONES)
    several = any(len(held) > 1 for held in found)
    for name in ["", *(dict.fromkeys(n for held in found for n in held) if several else [])]:
        for kind in KINDS:
            if name == "" and (f"{kind}@" == ONES or (kind == ZEROS and not whole(main))):
                continue  # ones have been, and zeros are for `special`, which knows of their signs
            given = [[t for n, t in held.items() if name in ("", n)] for held in found]
            shown = [s for s, known in enumerate(given) if any(_shows(t, kind) for t in known)]
            if shown:
                yield Case(rng.choice(shown), main, values=f"{kind}@{name}")


def _numbers(subject: Subject, s: int) -> dict[str, Tensor]:
    """The arguments of a sample that hold numbers, by name, each with its largest tensor."""
    given = subject.plain(s)
    if given is None:
        return {}
    values = source_of(subject.op).signature.bind(given.args, given.kwargs)
    held = {
        name: [t for t in tensors(v) if t.is_floating_point() or t.is_complex() or t.dtype == subject.main]
        for name, v in values.items()
    }
    return {name: max(known, key=Tensor.numel) for name, known in held.items() if known}


def _shows(t: Tensor, kind: str) -> bool:
    return t.numel() >= ENOUGH and (kind != "eye" or t.dim() > 1)
