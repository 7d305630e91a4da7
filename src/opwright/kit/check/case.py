"""One case: what is tried, as its id says it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from opwright.kit.check.layouts import PLAIN
from opwright.kit.spec.require import spell


@dataclass(frozen=True)
class Case:
    """One case: which sample, in which sizes, with which values, in which dtype and layout. Everything else follows
    from the seed."""

    sample: int
    dtype: torch.dtype
    layout: str = PLAIN
    variant: str = ""
    """Other sizes than the declared ones (`sizes.py`)."""
    extra: str = ""
    """What a property adds of its own."""
    values: str = ""
    """Other values than the drawn ones (`values.py`), by one change or several with a + between them."""

    @property
    def drawn(self) -> str:
        """The sample with its sizes and values: `2-tail+shifted`."""
        return f"{self.sample}{'-' if self.variant else ''}{self.variant}{'+' if self.values else ''}{self.values}"

    @property
    def id(self) -> str:
        return f"{self.drawn}.{spell(self.dtype)}.{self.layout}" + (f".{self.extra}" if self.extra else "")

    @property
    def unforeseen(self) -> bool:
        """Whether it has options or shapes that no sample leads to, which an operator may refuse."""
        return "=" in self.values or "thin" in self.values

    @classmethod
    def read(cls, text: str) -> Case:
        """The case of an id.

        >>> Case.read("2-s0=33+2^4+shifted.float64.plain").values
        '2^4+shifted'
        """
        drawn, dtype, layout, *more = [*re.sub(r"^[A-Za-z_]\w*:", "", text).split("."), "", ""]
        sized, _, values = drawn.partition("+")
        sample, _, variant = sized.partition("-")
        found = getattr(torch, dtype, None)
        if not sample.isdigit() or not isinstance(found, torch.dtype):
            raise ValueError(f"a case is SAMPLE[-SIZES][+VALUES].DTYPE.LAYOUT, got {text!r}")
        return cls(int(sample), found, layout, variant, ".".join(filter(None, more)), values)


def whole(dtype: torch.dtype) -> bool:
    """Whether a dtype is one of integers."""
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
