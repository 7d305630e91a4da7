"""The cases of an operator: its samples, in every dtype and layout, and in sizes that its author did not write."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check import alike, meetings, options, sizes, steps, values, variants
from opwright.kit.check.afford import enough
from opwright.kit.check.case import Case, whole
from opwright.kit.check.constants import Constants, constants_of
from opwright.kit.check.drawn import MOST_ELEMENTS, Draw, climb, declared, source_of
from opwright.kit.check.layouts import APART, LAYOUTS, MIXED, PLAIN, apart, lay, places
from opwright.kit.check.report import NotApplicable
from opwright.kit.check.screen import screen
from opwright.kit.check.ties import tied, ties
from opwright.kit.op import Op
from opwright.kit.spec.require import spell
from opwright.kit.spec.samples import Sample, rung_sample
from opwright.kit.spec.values import tensors

__all__ = ["Case", "Subject", "describe", "whole"]
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
AROUND = 48
"""Variants of sizes around the constants of a kernel."""


@dataclass
class Subject:
    """An operator under check: a rung of a ladder, on a device, with a seed."""

    op: Op[..., Any]
    device: str = "cpu"
    seed: int = 0
    thorough: bool = False
    seconds: float = 0.0
    """What a search may take; 0: the usual."""
    case: str | None = None
    """The one case that is asked for, if one is."""
    found: Sequence[str] = ()
    """Cases that a search has found to lead somewhere, by their ids."""
    _memo: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.op.name

    def rng(self, *key: object) -> random.Random:
        return random.Random("/".join(map(str, (self.seed, self.op.home.name, *key))))

    # --- samples -----------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many samples there are."""
        if "count" not in self._memo:
            dtypes = dict.fromkeys((torch.float32, *DTYPES))  # an author may yield samples of some alone
            counts = ((d, sum(1 for _ in declared(source_of(self.op), Draw(d, self.device, 0)))) for d in dtypes)
            dtype, count = next(((d, n) for d, n in counts if n), (torch.float32, 0))
            self._memo["count"], self._memo["drawn"] = count, dtype
        return int(self._memo["count"])

    def _first_draw(self) -> Draw:
        """What makes samples in a dtype that they are of."""
        return Draw(self._memo["drawn"] if self.count else torch.float32, self.device, 0)

    def draw(self, case: Case) -> Sample:
        """The arguments of a case: the same each time, in memory of their own each time."""
        source = source_of(self.op)
        torch.default_generator.manual_seed(self._number(case))
        drawn = self._drawn(source, case)
        for below, above in climb(source, self.op):
            made = Draw(case.dtype, self.device, self._number(case) + 1)
            enough(below, drawn, case)  # which is called for what it keeps
            try:
                screen(below, drawn)
                sample = rung_sample(below, above, made.fresh, drawn)
            except Exception:
                raise NotApplicable("the operator below rejects it") from None
            if sample is None:
                raise NotApplicable("it has no gradient in this dtype")
            drawn = sample
        return self._laid(drawn, case)

    def _number(self, case: Case) -> int:
        return zlib.crc32(f"{self.seed}/{self.op.home.name}/{case.sample}/{case.variant}".encode())

    def _drawn(self, source: Op[..., Any], case: Case) -> Sample:
        make = Draw(case.dtype, self.device, 0)
        samples = declared(source, make)
        for index in range(case.sample + 1):
            make.seen.clear()
            make.drawn.clear()
            if index == case.sample:
                make.generator.manual_seed(self._number(case))
                make.sizes = self._sizes(source, case)
                make.most = sizes.VAST if case.variant == "vast" else MOST_ELEMENTS
                if make.sizes and self._memo["ties"][case.sample]:
                    make.most >>= 6  # matrices of one size by itself and its multiples, which are multiplied
            try:
                sample = next(samples)
            except StopIteration:
                raise NotApplicable("there is no such sample") from None
            except NotApplicable:
                raise
            except Exception:
                if not case.variant and case.dtype == torch.float32:
                    raise
                raise NotApplicable("its author's code takes no other sizes or dtypes") from None
        if make.sizes:
            sample = values.refit(sample, source, make.sizes, make.drawn)
        return self._changed(source, sample, case) if case.values else sample

    def _changed(self, source: Op[..., Any], sample: Sample, case: Case) -> Sample:
        so_far: list[str] = []
        for change in case.values.split("+"):
            numbers = change in values.WHOLE or (steps.is_step(change.partition("@")[0]) and whole(case.dtype))
            if numbers and not values.is_data(self.quiet(), sample, case.dtype):
                raise NotApplicable("its integers are no data")
            so_far.append(change)
            rng = self.rng(case.sample, case.variant, "+".join(so_far))
            try:
                sample = values.Change(source, case.dtype, change, self.constants, rng).of(sample)
            except NotApplicable:
                raise
            except Exception as e:  # of ours, and no mistake of the operator's
                raise NotApplicable(f"it cannot be changed so: {type(e).__name__}: {e}") from None
        return sample

    def _sizes(self, source: Op[..., Any], case: Case) -> dict[int, int]:
        if not case.variant:
            return {}
        own = self.declared_sizes(source)[case.sample]
        if not own:
            raise NotApplicable("no size of it can change")
        chosen = sizes.choose_sizes(own, case.variant, self.rng(case.sample, case.variant))
        return tied(chosen, self._memo["ties"][case.sample])

    def declared_sizes(self, source: Op[..., Any]) -> list[list[int]]:
        """The sizes of every sample that can be changed."""
        if "sizes" not in self._memo:
            make, found, made, shapes = self._first_draw(), [], [], []
            for sample in declared(source, make):
                made.append(ties(source, sample))
                shapes.append([tuple(t.shape) for t in make.drawn])
                found.append([size for size in make.seen if all(size != tie.size for tie in made[-1])])
                make.seen.clear()
                make.drawn.clear()
            self._memo["sizes"], self._memo["ties"], self._memo["shapes"] = found, made, shapes
        known: list[list[int]] = self._memo["sizes"]
        return known

    def declared_shapes(self, source: Op[..., Any]) -> list[list[tuple[int, ...]]]:
        """The shapes of the tensors that every sample draws."""
        self.declared_sizes(source)
        known: list[list[tuple[int, ...]]] = self._memo["shapes"]
        return known

    @property
    def constants(self) -> Constants:
        """The numbers in the sources of its kernels."""
        if "constants" not in self._memo:
            self._memo["constants"] = constants_of(self.op, torch.device(self.device).type)
        known: Constants = self._memo["constants"]
        return known

    def _laid(self, sample: Sample, case: Case) -> Sample:
        if case.layout == PLAIN:
            return sample
        rng = self.rng(case.id)
        changed, count = False, 0

        def place(name: str, value: Any) -> Any:
            nonlocal changed, count
            parameter = self.op.signature.names[name]
            if parameter.like:
                return value
            if isinstance(value, Tensor):
                if case.layout.startswith(APART):
                    laid = apart(value, case.layout, count)
                else:
                    laid = lay(value, case.layout, rng, written=parameter.mutated or self._belongs(name, value))
                count += 1
                changed = changed or laid is not value
                return laid
            return [place(name, v) for v in value] if isinstance(value, (list, tuple)) and tensors(value) else value

        names = [p.name for p in self.op.signature.parameters]
        args = tuple(place(n, v) for n, v in zip(names, sample.args, strict=False))
        laid = Sample(args, {n: place(n, v) for n, v in sample.kwargs.items()})
        if not changed and case.layout != MIXED:
            raise NotApplicable("no tensor of it can have this layout")
        return laid

    def _belongs(self, name: str, value: Tensor) -> bool:
        """Whether a tensor holds indices that may belong together: wherever they lie, they keep their values."""
        return whole(value.dtype) and options.belongs(self.op, name)

    def belonging(self, sample: Sample) -> list[Tensor]:
        """The tensors of a call that hold indices which may belong together."""
        given = self.op.signature.bind(sample.args, sample.kwargs)
        return [t for name, value in given.items() for t in tensors(value) if self._belongs(name, t)]

    # --- what is tried -----------------------------------------------------------------------------------------

    @property
    def dtypes(self) -> list[torch.dtype]:
        """The dtypes in which the reference takes a sample at all."""
        if "dtypes" not in self._memo:
            named = [d for k in self.op.kernels for d in k.domain.dtypes]
            self._memo["dtypes"] = [d for d in dict.fromkeys((*DTYPES, *named)) if self._takes(d)]
        return list(self._memo["dtypes"])

    def _takes(self, dtype: torch.dtype) -> bool:
        for index in range(self.count):
            try:
                sample = self.draw(Case(index, dtype))
                with torch.no_grad():
                    self.op.calls.direct(*sample.args, **sample.kwargs)
            except Exception:
                continue
            return True
        return False

    @property
    def fast_dtypes(self) -> list[torch.dtype]:
        """The dtypes in which a kernel runs on this device."""
        kernels = [k for k in self.op.kernels if k.device == torch.device(self.device).type]
        if any(not k.domain.dtypes for k in kernels):
            return self.dtypes
        return [d for d in self.dtypes if any(d in k.domain.dtypes for k in kernels)]

    @property
    def has_kernel(self) -> bool:
        """Whether a kernel runs on this device."""
        return any(k.device == torch.device(self.device).type for k in self.op.kernels)

    @property
    def main(self) -> torch.dtype:
        """The dtype in which most is tried."""
        return next(iter([*self.fast_dtypes, *self.dtypes]), torch.float32)

    def cases(self) -> Iterator[Case]:
        """The cases for what compares values. Where no kernel runs, the reference would only meet itself."""
        fast, rng = self.fast_dtypes, self.rng("cases")
        large = set(rng.sample(range(self.count), min(3, self.count)))
        for s in range(self.count):
            if not fast:
                yield from (Case(s, d) for d in self.dtypes)
                yield Case(s, self.main, MIXED, "tail")
                continue
            yield from (Case(s, self.main, layout) for layout in LAYOUTS)
            yield from (Case(s, self.main, layout) for layout in places(self._several(s), self.rng("places", s)))
            yield from (Case(s, d) for d in self.dtypes if d != self.main)
            yield from (Case(s, d, MIXED) for d in fast if d != self.main)
            for variant in sizes.VARIANTS:
                if variant == "big" and s not in large and not self.thorough:
                    continue
                yield Case(s, self.main, PLAIN, variant)
                if variant == "equal" and not self.thorough:
                    continue
                yield Case(s, rng.choice(fast), MIXED, variant)
                if self.thorough:
                    yield from (Case(s, d, rng.choice([*LAYOUTS]), variant) for d in fast)
            count = len(self.declared_sizes(source_of(self.op))[s])
            yield from (Case(s, self.main, variant=sizes.at(which, 0)) for which in range(count))  # each may be empty
            yield from (Case(s, self.main, variant=v) for v in sizes.powers(count, rng))
            yield from variants.other_values(self, s, rng)
            yield from meetings.cases(self, s, self.rng("meetings", s))
        if fast:
            yield from alike.cases(self, self.rng("alike"))
            yield from variants.around(self, AROUND * (4 if self.thorough else 1), rng)
            yield from variants.together(self, rng)
            yield from variants.in_halves(self, rng.randrange(self.count), rng)
            yield Case(rng.randrange(self.count), self.main, variant="vast")
            yield from meetings.large(self, self.rng("large"))
        yield from map(Case.read, self.found)

    def _several(self, s: int) -> int:
        """How many tensors a sample has, if several of them can be transposed; else none."""
        given = self._made(s)
        found = [t for v in (*given.args, *given.kwargs.values()) for t in tensors(v)] if given else []
        return len(found) if sum(t.dim() > 1 for t in found) > 1 else 0

    def _made(self, s: int) -> Sample | None:
        """A sample of this very operator, as it is."""
        try:
            return self.draw(Case(s, self.main))
        except Exception:
            return None

    def indices(self, s: int) -> tuple[str, ...]:
        """The variants of a sample's indices, if it has any."""
        given = self.plain(s)
        found = [t for v in (*given.args, *given.kwargs.values()) for t in tensors(v)] if given else []
        apart = [t for t in found if whole(t.dtype) and t.dtype != self.main]
        # More than two tell of each other, as a sparse matrix and its transpose do: none can change alone.
        return values.INDEX if 0 < len(apart) <= 2 else ()

    def options(self, s: int) -> list[str]:
        """The variants of a sample's options."""
        given = self.plain(s)
        return [*options.options_of(source_of(self.op), given)] if given else []

    def plain(self, s: int) -> Sample | None:
        """A sample of the operator that declares it, as it is."""
        try:
            return self._drawn(source_of(self.op), Case(s, self.main))
        except NotApplicable:
            return None

    def quiet(self) -> Callable[[Sample], Any]:
        """A call of the reference of the operator that declares the samples; nothing is recorded."""
        op = source_of(self.op)

        def run(sample: Sample) -> Any:
            screen(op, sample)
            with torch.no_grad():
                return op.calls.direct(*sample.args, **sample.kwargs)

        return run

    def few(self, most: int = 3, *, dtype: torch.dtype | None = None, extra: str = "") -> Iterator[Case]:
        """A few plain cases, for what is slow and does not depend on values."""
        count = self.count if self.thorough else min(self.count, most)
        yield from (Case(s, dtype or self.main, extra=extra) for s in range(count))


def describe(op: Op[..., Any], sample: Sample) -> str:
    """A call in words: `x=float32[2, 3] strides (1, 2)`."""

    def show(value: Any) -> str:
        if isinstance(value, Tensor):
            words = f"{spell(value.dtype)}{list(value.shape)}"
            dense = math.prod(value.shape) < 2 or value.is_contiguous()
            words += "" if dense else f" strides {tuple(value.stride())}"
            offset = value.storage_offset() if value.layout == torch.strided else 0
            return words + (f" offset {offset}" if offset else "")
        return f"[{', '.join(map(show, value))}]" if isinstance(value, (list, tuple)) else repr(value)

    given = op.signature.bind(sample.args, sample.kwargs)
    return ", ".join(f"{name}={show(value)}" for name, value in given.items() if value is not None)
