"""The samples of an operator, drawn: whose they are, in which sizes, and those of one whose author wrote none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from opwright.kit.check.report import NotApplicable
from opwright.kit.op import Op
from opwright.kit.spec.samples import Maker, Sample, read_sample

MOST_ELEMENTS = 1 << 22
"""Of a tensor whose sizes are changed."""


class Draw(Maker):
    """Makes the tensors of one sample, with sizes put in place of the declared ones."""

    def __init__(self, dtype: torch.dtype, device: str, seed: int) -> None:
        super().__init__(dtype, device, seed)
        self.sizes: dict[int, int] = {}
        self.seen: dict[int, None] = {}
        self.drawn: list[Tensor] = []
        self.most = MOST_ELEMENTS

    def __call__(self, *shape: int, dtype: torch.dtype | None = None, low: float = -2.0, high: float = 2.0) -> Tensor:
        self.seen.update(dict.fromkeys(s for s in shape if s > 1))
        real = [self.sizes.get(s, s) for s in shape]
        if self.sizes and math.prod(real) > self.most:
            raise NotApplicable("a size that stands twice in one shape would make it too large")
        self.drawn.append(super().__call__(*real, dtype=dtype, low=low, high=high))
        return self.drawn[-1]

    def fresh(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """A tensor of exactly this shape."""
        return super().__call__(*shape, dtype=dtype)


def source_of(op: Op[..., Any]) -> Op[..., Any]:
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


def climb(source: Op[..., Any], op: Op[..., Any]) -> list[tuple[Op[..., Any], Op[..., Any]]]:
    """The steps from the operator that has samples to the rung that needs some."""
    steps: list[tuple[Op[..., Any], Op[..., Any]]] = []
    while op is not source and op.parent is not None:
        steps.insert(0, (op.parent, op))
        op = op.parent
    return steps


def declared(op: Op[..., Any], make: Draw) -> Iterator[Sample]:
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
