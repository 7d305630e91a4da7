"""A sample with one size, or several, so large that its largest tensor has as many elements as are wanted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.check.drawn import Draw, declared
from opwright.kit.check.report import NotApplicable
from opwright.kit.op import Op
from opwright.kit.spec.samples import Sample
from opwright.kit.spec.values import tensors

MADE = 2**24
"""Elements of tensors that an author makes without `make`, which take memory while a size is looked for. A size that
they grow with is not one to stretch."""
MOST_STEPS = 1 << 21
"""Tensors that a reference may make: one that loops over a large size is not done within minutes."""
PAIRS = 32
"""Pairs of sizes that are tried where none grows by itself."""
Sizes = dict[int, int]


class Shapes(Draw):
    """Makes tensors without memory, to learn how large they would be; then ones on the device, made there."""

    def __init__(self, dtype: torch.dtype, device: str, seed: int, *, positive: bool = False) -> None:
        super().__init__(dtype, device, seed)
        self._on = self.device
        self.there = torch.Generator(device).manual_seed(seed)  # `generator` is for authors, who draw on the CPU
        self.positive = positive
        """Whether numbers are far from zero, of one sign: sums of others hardly tell of how many they are."""
        self.begin({}, made=False)

    def begin(self, sizes: Sizes, *, made: bool) -> None:
        """Draw again, with sizes in place of declared ones."""
        self.sizes, self.made = sizes, made
        self.device = self._on if made else torch.device("meta")  # for what an author makes beside
        self.seen.clear()

    def __call__(self, *shape: int, dtype: torch.dtype | None = None, low: float = -2.0, high: float = 2.0) -> Tensor:
        self.seen.update(dict.fromkeys(s for s in shape if s > 1))
        real = [self.sizes.get(s, s) for s in shape]
        if not self.made:
            return torch.empty(real, dtype=dtype or self.dtype, device="meta")
        return self.fresh(*real, dtype=dtype or self.dtype, low=low, high=high)

    def fresh(self, *shape: int, dtype: torch.dtype, low: float = -2.0, high: float = 2.0) -> Tensor:
        made = torch.empty(shape, dtype=dtype, device=self._on)
        if dtype.is_floating_point or dtype.is_complex:
            low = max(low, high / 2) if self.positive and high > 0 else low
            (torch.view_as_real(made) if dtype.is_complex else made).uniform_(low, high, generator=self.there)
        elif dtype == torch.bool:
            made.random_(0, 2, generator=self.there)
        else:
            least = max(low, 0) if dtype == torch.uint8 else low
            made.random_(int(least), int(high), generator=self.there)
        return made


class TooMuch(NotApplicable):
    """A sample or its reference takes too much memory or too long while sizes are looked for."""


class _Counted(private.TorchDispatchMode):
    """Counts the tensors that are made. Without memory none that has some becomes large."""

    def __init__(self, made: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made, self.steps = made, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        found = tensors(out)
        self.steps += 1 + len(found)
        if self.steps > MOST_STEPS:
            raise TooMuch("its reference would take long")
        if not self._made and any(t.numel() > MADE for t in found if t.device.type != "meta"):
            raise TooMuch("its author's own tensors would be too large")
        return out


Barren = dict[tuple[int, ...], bool]
"""Sizes that were found not to grow, which they do not for more elements either: to find out again takes long. And
whether it was too much to try."""


class Stretch:
    """The search for the sizes of one sample, without memory as far as that goes."""

    def __init__(self, source: Op[..., Any], make: Shapes, which: int, barren: Barren | None = None) -> None:
        self._source, self.make, self._which = source, make, which
        self._barren = {} if barren is None else barren

    def drawn(self, sizes: Sizes, *, made: bool) -> Sample:
        """The sample with sizes in place of its own."""
        samples = declared(self._source, self.make)
        self.make.begin({}, made=made)
        for _ in range(self._which):
            next(samples)
        self.make.begin(sizes, made=made)
        return next(samples)

    def sizes(self, many: int) -> Sizes:
        """The least sizes with which the largest tensor has so many elements, and which the reference takes: one that
        grows by itself, else two that grow together, else all."""
        try:
            self._bare({})
        except Exception:
            raise NotApplicable("its samples cannot be drawn without memory") from None
        own = list(self.make.seen)
        bare = self._steps({}, made=False) is not None
        pairs = itertools.islice(itertools.combinations(own, 2), PAIRS)
        for groups in ([(size,) for size in own], list(pairs), [tuple(own)] if len(own) > 2 else []):
            some = [group for group in groups if not any(self._barren.get((size,)) for size in group)]
            found = [sizes for group in some for sizes in self._grown(group, many, bare)]
            if found:
                return min(found, key=lambda sizes: sum(self._elements(sizes)))
        raise NotApplicable("no size of it can be made so large")

    def _bare(self, sizes: Sizes) -> Sample:
        with _Counted(made=False):
            return self.drawn(sizes, made=False)

    def _elements(self, sizes: Sizes) -> list[int]:
        sample = self._bare(sizes)
        return [t.numel() for v in (*sample.args, *sample.kwargs.values()) for t in tensors(v)]

    def _grown(self, group: tuple[int, ...], many: int, bare: bool) -> Iterator[Sizes]:
        """The least sizes of a group that do; none where no tensor grows with them, or the reference takes no others:
        they may depend on each other. What is larger by a little stands for what is large, where tensors take memory or
        the reference loops over a size; others (`bare`) are tried as they are."""
        if group in self._barren:
            return
        self._barren[group] = False
        least = self._least(group, many)
        if least is None:
            return
        for more in (0, 1):
            few, some = (self._steps(_larger(group, times, more), made=not bare) for times in (2, 4))
            if few is None or some is None:
                continue
            each = max(some - few, 0) / 2
            if each * least[group[0]] / group[0] > MOST_STEPS:
                return
            if not bare or each or self._steps(least, made=False) is not None:
                del self._barren[group]
                yield least
                return

    def _least(self, group: tuple[int, ...], many: int) -> Sizes | None:
        def suffices(by: int) -> bool:
            return max(self._elements(_by(group, by)), default=0) >= many

        least, most = 1, 2
        try:
            while not suffices(most):
                least, most = most, 2 * most
                if most > 4 * many:
                    return None
            while most - least > 1:
                middle = (least + most) // 2
                least, most = (least, middle) if suffices(middle) else (middle, most)
        except torch.OutOfMemoryError:
            raise
        except TooMuch:
            self._barren[group] = True
            return None
        except Exception:  # also where a sample is none with another size
            return None
        return _by(group, most)

    def _steps(self, sizes: Sizes, *, made: bool) -> int | None:
        """The tensors that the reference makes with these sizes; None where it does not take them."""
        try:
            sample = self.drawn(sizes, made=made)
            with _Counted(made) as counted:
                self._source.reference(*sample.args, **sample.kwargs)
        except Exception:
            return None
        return int(counted.steps)


def _by(group: tuple[int, ...], number: int) -> Sizes:
    """One size that is a number; of several, each so many times what it was, so that products and sums of them stay
    what they are."""
    return {size: number if len(group) == 1 else number * size for size in group}


def _larger(group: tuple[int, ...], times: int, more: int) -> Sizes:
    return _by(group, times * group[0] + more if len(group) == 1 else times + more)
