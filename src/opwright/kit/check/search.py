"""The search for inputs that reach what no case has reached: blocks of a kernel, and both outcomes of its comparisons.

An input is a case, so that its id replays it; the search goes on from those that reached something new by changing
their sizes, dtype, layout and numbers. Where a comparison has had one outcome alone, its operands say which way to go.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from opwright.kit.check import sizes, values, variants
from opwright.kit.check.cases import Case, Subject, whole
from opwright.kit.check.drawn import source_of
from opwright.kit.check.instrument import Compared, Instrumented
from opwright.kit.check.layouts import LAYOUTS, PLAIN
from opwright.kit.check.steps import PLAIN as STEPS
from opwright.kit.check.steps import spelled

ENOUGH = 3
"""How many cases that reach something are judged."""
STALE = 1500
"""Cases in a row that reach nothing new, after which nothing more is expected."""
LONGEST = 5
"""Changes of numbers, one after the other."""
Place = tuple[int, int]


class Search:
    """What the cases of one rung have reached so far, and where to go from there."""

    def __init__(self, told: Sequence[Instrumented]) -> None:
        self.told = told
        self.kept: list[Case] = []
        """Those that reached something new, in their order."""
        self._tried: set[str] = set()
        self._judged: Counter[tuple[int, ...]] = Counter()
        """By what was reached, how many cases were judged that reach it."""
        self._outcomes: dict[Place, int] = {}
        self._open: dict[Place, tuple[Case, Compared]] = {}
        """Comparisons with one outcome alone: the case that came nearest to another, and its operands."""
        self._reached: list[tuple[int, ...]] = []
        self._stale = 0

    @property
    def complete(self) -> bool:
        """Whether nothing is left to be reached."""
        return not self._open and all(lib.ran.issuperset(lib.blocks) for lib in self.told)

    def forget(self) -> None:
        """What ran since the last look was no case."""
        for lib in self.told:
            lib.ran.update(lib.take().ran)

    def notable(self, case: Case) -> bool:
        """Look at what a case reached, and say whether it is worth a judgement."""
        self._reached, new = [], False
        for number, lib in enumerate(self.told):
            seen = lib.take()
            lib.ran.update(seen.ran)
            self._reached += [(number, place) for place in seen.ran]
            for place, compared in seen.compared.items():
                self._reached += [(number, place, bit) for bit in (1, 2, 4, 8) if compared.outcomes & bit]
                new |= self._nearer((number, place), case, compared)
        new |= any(reached not in self._judged for reached in self._reached)
        for reached in self._reached:
            self._judged.setdefault(reached, 0)
        self._stale = 0 if new else self._stale + 1
        if new:
            self.kept.append(case)
        return new or any(self._judged[reached] < ENOUGH for reached in self._reached)

    def count(self) -> None:
        """The case that was looked at last has been judged."""
        self._judged.update(self._reached)

    def _nearer(self, place: Place, case: Case, compared: Compared) -> bool:
        """Whether a comparison came nearer to an outcome that it has not had."""
        known = self._outcomes[place] = self._outcomes.get(place, 0) | compared.outcomes
        if known & 7 not in (1, 2, 4):
            self._open.pop(place, None)
            return False
        before = self._open.get(place)
        if before is None or compared.near > before[1].near:
            self._open[place] = case, compared
            return before is not None
        return False

    # --- where to go -------------------------------------------------------------------------------------------

    def cases(self, subject: Subject) -> Iterator[Case]:
        """Cases to look at: first those that every check has, then others without end, until nothing new comes."""
        for case in subject.cases():
            if case.dtype in subject.fast_dtypes and case.variant != "vast" and case.id not in self._tried:
                self._tried.add(case.id)
                yield case
        rng = subject.rng("search", len(self._tried))
        self._stale, unlucky = 0, 0
        while self.kept and not self.complete and self._stale < STALE and unlucky < STALE:
            case = self._next(subject, rng)
            unlucky += 1
            if case.id not in self._tried:
                self._tried.add(case.id)
                unlucky = 0
                yield case

    def _next(self, subject: Subject, rng: random.Random) -> Case:
        if self._open and rng.random() < 0.6:
            parent, compared = rng.choice([*self._open.values()])
            return self._towards(subject, parent, compared, rng)
        recent = self.kept[-6:] if rng.random() < 0.5 else self.kept
        parent = rng.choice(recent)
        return rng.choice((self._sized, self._other_values, self._other_values, self._moved))(subject, parent, rng)

    def _towards(self, subject: Subject, parent: Case, compared: Compared, rng: random.Random) -> Case:
        """A case in which what was compared may turn out otherwise: by the numbers that it was compared with."""
        left, right = (compared.left, compared.right) if rng.random() < 0.7 else (compared.right, compared.left)
        if not (math.isfinite(left) and math.isfinite(right)):
            return self._other_values(subject, parent, rng)
        count = len(subject.declared_sizes(source_of(subject.op))[parent.sample])
        if compared.kind == "whole" and count and rng.random() < 0.6:
            wanted = [int(right) + rng.choice((-1, 0, 1))]
            wanted += [n * int(right) // int(left) + 1 for n in _sizes_in(parent.variant) if left > 0 and right > 0]
            size = rng.choice(wanted)
            if 0 <= size <= sizes.MOST_CONSTANT:
                return replace(parent, variant=sizes.at(rng.randrange(count), size))
        options = {v.partition("=")[0] for v in subject.options(parent.sample) if "=" in v and not v.endswith("None")}
        beyond = 1 + rng.choice((0.0, 0.0, 0.01, 0.3, 3.0))
        ratio = right / left * beyond if left else right
        steps = [f"by:{spelled(ratio)}", f"by:{spelled(math.copysign(math.sqrt(abs(ratio)), rng.choice((-1, 1))))}"]
        steps += [f"to:{spelled(right)}", f"all:{spelled(right * beyond)}", f"plus:{spelled((right - left) * beyond)}"]
        steps += [f"{name}={spelled(right + rng.choice((-1, 0, 1)))}" for name in sorted(options)]
        return _and(parent, rng.choice(steps))

    def _other_values(self, subject: Subject, parent: Case, rng: random.Random) -> Case:
        """The same with one more change of its numbers, or another in place of the last."""
        if whole(parent.dtype):
            known = [*values.WHOLE, *STEPS]
        else:
            known = [*values.scales(parent.dtype, rng)] if parent.dtype.is_floating_point else []
            known += [*(v for v in values.FLOATS if variants.named(subject, v)), *STEPS, f"again:{rng.randrange(1000)}"]
        known = rng.sample(known, min(5, len(known)))
        known += [*subject.indices(parent.sample), *rng.sample(o := subject.options(parent.sample), min(3, len(o)))]
        if parent.values and rng.random() < 0.4:
            parent = replace(parent, values=parent.values.rpartition("+")[0])
        return _and(parent, rng.choice(known))

    def _sized(self, subject: Subject, parent: Case, rng: random.Random) -> Case:
        count = len(subject.declared_sizes(source_of(subject.op))[parent.sample])
        if not count:
            return self._moved(subject, parent, rng)
        some = [rng.choice(sizes.TAILS), 2 ** rng.randint(0, 12) + rng.choice((-1, 0, 1)), rng.randint(0, 40)]
        some += [n + 1 for n in _sizes_in(parent.variant)] + [2 * n for n in _sizes_in(parent.variant) if n < 1 << 14]
        first, *others = rng.sample(range(count), rng.randint(1, min(count, 2)))
        named = [sizes.at(first, rng.choice(some)), *(sizes.at(which, rng.randint(0, 40)) for which in others)]
        if rng.random() < 0.3:
            named = [rng.choice(("zero", "one", "tail", "tail2", "equal"))]
        return replace(parent, variant=",".join(named))

    def _moved(self, subject: Subject, parent: Case, rng: random.Random) -> Case:
        """Another dtype, layout or sample with the same sizes and numbers."""
        what = rng.randrange(3)
        if what == 0:
            return replace(parent, dtype=rng.choice(subject.fast_dtypes))
        if what == 1:
            return replace(parent, layout=rng.choice([PLAIN, *(name for name in LAYOUTS if name != "far")]))
        return replace(parent, sample=rng.randrange(subject.count))


def _and(case: Case, change: str) -> Case:
    """A case with one more change of its numbers; where there are many, in place of the first."""
    so_far = case.values.split("+") if case.values else []
    return replace(case, values="+".join([*so_far[-LONGEST + 1 :], change]))


def _sizes_in(variant: str) -> list[int]:
    """The sizes that a variant names."""
    return [int(part.partition("=")[2]) for part in variant.split(",") if part.startswith("s")]
