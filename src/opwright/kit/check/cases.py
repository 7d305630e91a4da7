"""The cases of an operator: its samples, in every dtype and layout, and in sizes that its author did not write."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check.layouts import LAYOUTS, MIXED, PLAIN, lay
from opwright.kit.check.report import NotApplicable
from opwright.kit.op import Op
from opwright.kit.spec.require import spell
from opwright.kit.spec.samples import Maker, Sample, read_sample, rung_sample
from opwright.kit.spec.values import tensors

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
MOST_ELEMENTS = 1 << 22
"""Of a tensor whose sizes are changed."""
VARIANTS = ("zero", "one", "tail", "tail2", "big")
"""Sizes other than the declared ones: one of them 0 or 1, odd ones around the widths of vectors, and so many elements
that a kernel divides them among threads."""
TAILS = (2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 31, 33, 63, 64, 65, 97, 127, 129, 255, 257, 511, 1023, 1025, 2047, 2049)
BIG = 80_000
"""Enough for three threads' worth of kernel.h's grain."""


@dataclass(frozen=True)
class Case:
    """One case: which sample, in which sizes, dtype and layout. Everything else follows from the seed."""

    sample: int
    dtype: torch.dtype
    layout: str = PLAIN
    variant: str = ""
    extra: str = ""
    """What a property adds of its own."""

    @property
    def id(self) -> str:
        sizes = f"-{self.variant}" if self.variant else ""
        return f"{self.sample}{sizes}.{spell(self.dtype)}.{self.layout}" + (f".{self.extra}" if self.extra else "")


class Draw(Maker):
    """Makes the tensors of one sample, with sizes put in place of the declared ones."""

    def __init__(self, dtype: torch.dtype, device: str, seed: int) -> None:
        super().__init__(dtype, device, seed)
        self.sizes: dict[int, int] = {}
        self.seen: dict[int, None] = {}

    def __call__(self, *shape: int, dtype: torch.dtype | None = None, low: float = -2.0, high: float = 2.0) -> Tensor:
        self.seen.update(dict.fromkeys(s for s in shape if s > 1))
        sizes = [self.sizes.get(s, s) for s in shape]
        if self.sizes and math.prod(sizes) > MOST_ELEMENTS:
            raise NotApplicable("a size that stands twice in one shape would make it too large")
        return super().__call__(*sizes, dtype=dtype, low=low, high=high)

    def fresh(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """A tensor of exactly this shape."""
        return super().__call__(*shape, dtype=dtype)


@dataclass
class Subject:
    """An operator under check: a rung of a ladder, on a device, with a seed."""

    op: Op[..., Any]
    device: str = "cpu"
    seed: int = 0
    thorough: bool = False
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
            self._memo["count"] = sum(1 for _ in _declared(_source(self.op), Draw(torch.float32, self.device, 0)))
        return int(self._memo["count"])

    def draw(self, case: Case) -> Sample:
        """The arguments of a case: the same each time, in memory of their own each time."""
        source = _source(self.op)
        torch.default_generator.manual_seed(self._number(case))
        drawn = self._drawn(source, case)
        for below, above in _climb(source, self.op):
            made = Draw(case.dtype, self.device, self._number(case) + 1)
            try:
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
        samples = _declared(source, make)
        for index in range(case.sample + 1):
            make.seen.clear()
            if index == case.sample:
                make.generator.manual_seed(self._number(case))
                make.sizes = self._sizes(source, case)
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
        return sample

    def _sizes(self, source: Op[..., Any], case: Case) -> dict[int, int]:
        if not case.variant:
            return {}
        make = Draw(torch.float32, self.device, 0)
        samples = _declared(source, make)
        for _ in range(case.sample + 1):
            make.seen.clear()
            next(samples)
        if not make.seen:
            raise NotApplicable("no size of it can change")
        return choose_sizes(list(make.seen), case.variant, self.rng(case.sample, case.variant))

    def _laid(self, sample: Sample, case: Case) -> Sample:
        if case.layout == PLAIN:
            return sample
        rng = self.rng(case.id)
        changed = False

        def place(name: str, value: Any) -> Any:
            nonlocal changed
            parameter = self.op.signature.names[name]
            if parameter.like:
                return value
            if isinstance(value, Tensor):
                # Indices that no gradient reaches may belong together: wherever they lie, they keep their values.
                fixed = _is_index(value) and not self.op.home.signature.names.get(name, parameter).differentiable
                laid = lay(value, case.layout, rng, written=parameter.mutated or fixed)
                changed = changed or laid is not value
                return laid
            return [place(name, v) for v in value] if isinstance(value, (list, tuple)) and tensors(value) else value

        names = [p.name for p in self.op.signature.parameters]
        args = tuple(place(n, v) for n, v in zip(names, sample.args, strict=False))
        laid = Sample(args, {n: place(n, v) for n, v in sample.kwargs.items()})
        if not changed and case.layout != MIXED:
            raise NotApplicable("no tensor of it can have this layout")
        return laid

    # --- what is tried -----------------------------------------------------------------------------------------

    @property
    def dtypes(self) -> list[torch.dtype]:
        """The dtypes in which the reference takes a sample at all."""
        if "dtypes" not in self._memo:
            self._memo["dtypes"] = [d for d in DTYPES if self._takes(d)]
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
            yield from (Case(s, d) for d in self.dtypes if d != self.main)
            yield from (Case(s, d, MIXED) for d in fast if d != self.main)
            for variant in VARIANTS:
                if variant == "big" and s not in large and not self.thorough:
                    continue
                yield Case(s, self.main, PLAIN, variant)
                yield Case(s, rng.choice(fast), MIXED, variant)
                if self.thorough:
                    yield from (Case(s, d, rng.choice([*LAYOUTS]), variant) for d in fast)

    def few(self, most: int = 3, *, dtype: torch.dtype | None = None, extra: str = "") -> Iterator[Case]:
        """A few plain cases, for what is slow and does not depend on values."""
        count = self.count if self.thorough else min(self.count, most)
        yield from (Case(s, dtype or self.main, extra=extra) for s in range(count))


def _is_index(t: Tensor) -> bool:
    return not (t.dtype.is_floating_point or t.dtype.is_complex or t.dtype == torch.bool)


def choose_sizes(declared: list[int], variant: str, rng: random.Random) -> dict[int, int]:
    """Other sizes for the declared ones; different ones stay different, so that what must agree does and no more."""
    if variant in ("zero", "one"):
        return {rng.choice(declared): int(variant == "one")}
    if variant == "big":
        weights = [rng.random() + 0.2 for _ in declared]
        return _distinct({s: max(2, int(BIG ** (w / sum(weights)))) for s, w in zip(declared, weights, strict=True)})
    most = max(3.0, 8192 ** (1 / len(declared)))
    return _distinct({s: rng.choice([t for t in TAILS if t <= 2 * most]) for s in declared})


def _distinct(sizes: dict[int, int]) -> dict[int, int]:
    taken: set[int] = set()
    for declared, size in sizes.items():
        while size in taken:
            size += 1
        taken.add(size)
        sizes[declared] = size
    return sizes


def _source(op: Op[..., Any]) -> Op[..., Any]:
    """The operator whose samples an operator is tried on: itself, or the one below it that declares some."""
    while not op.spec.samples and op.role.below is not None:
        op = op.role.below
    if not op.spec.samples and op.name.endswith("_"):
        from opwright.kit.dispatch import registry

        plain = registry.find(op.qualname.removesuffix("_"))
        if plain is not None and [p.name for p in plain.signature.parameters] == [
            p.name for p in op.signature.parameters
        ]:
            return plain  # the derived in-place form is tried on what its operator is
    return op


def _climb(source: Op[..., Any], op: Op[..., Any]) -> list[tuple[Op[..., Any], Op[..., Any]]]:
    """The steps from the operator that has samples to the rung that needs some."""
    steps: list[tuple[Op[..., Any], Op[..., Any]]] = []
    while op is not source and op.parent is not None:
        steps.insert(0, (op.parent, op))
        op = op.parent
    return steps


def _declared(op: Op[..., Any], make: Draw) -> Iterator[Sample]:
    if not op.spec.samples:
        yield from _invented(op, make)
    for declared in op.spec.samples:
        for drawn in declared(make):
            yield read_sample(op.name, drawn)


def _invented(op: Op[..., Any], make: Draw) -> Iterator[Sample]:
    """Samples for an operator whose author wrote none: tensors of one shape, and numbers."""
    from opwright.kit.spec.schema import EMPTY

    values: dict[str, Callable[..., Any]] = {
        "Tensor": lambda *shape: make(*shape),
        "Tensor[]": lambda *shape: [make(*shape), make(*shape)],
        "Scalar": lambda *shape: 1.5,
        "float": lambda *shape: 1.5,
        "SymInt": lambda *shape: 1,
        "int": lambda *shape: 1,
        "bool": lambda *shape: True,
    }
    required = [p for p in op.signature.parameters if p.default is EMPTY or p.kind.schema == "Tensor?"]
    if any(p.kind.schema.removesuffix("?") not in values for p in required):
        return
    for shape in ((3,), (2, 3), (4, 4), ()):
        given = {p.name: values[p.kind.schema.removesuffix("?")](*shape) for p in required}
        plain = [p.name for p in required if not p.keyword_only]
        yield Sample(tuple(given[n] for n in plain), {n: v for n, v in given.items() if n not in plain})


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

    values = op.signature.bind(sample.args, sample.kwargs)
    return ", ".join(f"{name}={show(value)}" for name, value in values.items() if value is not None)
