"""An operator as data: what its author has said about it. What follows from that is derived, and what runs is bound."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from opwright.kit.spec.domain import Cost, Domain
from opwright.kit.spec.extras import Extras
from opwright.kit.spec.measured import Family, Variant
from opwright.kit.spec.options import Options
from opwright.kit.spec.samples import Maker
from opwright.kit.spec.schema import Parameter, Signature
from opwright.kit.spec.shard import Sharding

Draws = Callable[[Maker], Iterable[Any]]
"""What yields samples, or calls to reject."""


class Formula(NamedTuple):
    """A gradient that an operator's author has written."""

    function: Callable[..., Any]
    needs: Mapping[str, Sequence[str]] | None = None
    """For each input, the saved tensors that its gradient reads; None: all of them."""
    surrogate: bool = False
    """Whether it differs from the derivative of the reference on purpose."""
    when: Mapping[str, str] | None = None
    """For a saved tensor, the bool parameter without which a call does not keep it; None: all are kept."""
    derived: bool = False
    """Whether it is that derivative: whoever sees through the operator finds it there."""


@dataclass(frozen=True, eq=False)
class KernelSpec:
    """A kernel as declared: a function, or a source file and how to compile it."""

    device: str
    domain: Domain
    name: str
    function: Callable[..., Any] | None = None
    file: Path | None = None
    options: Options = field(default_factory=Options)


@dataclass(frozen=True, eq=False)
class Spec:
    """All that an operator's author has said. A decorator makes a new one of it; none is ever changed."""

    name: str
    namespace: str
    origin: str
    """Where it was defined: only the same place may define it again."""
    signature: Signature
    reference: Callable[..., Any]
    random: bool = False
    deterministic: bool = True
    """Whether the same call gives the same bits."""
    opaque: bool | None = None
    """Whether its author wants it to be one call in graphs; None: what follows from the rest."""
    compile: Literal["call", "inline"] = "call"
    autocast: tuple[str, ...] | None = None
    """The tensors that autocast casts; None: it sees the reference."""
    tags: tuple[torch.Tag, ...] = ()
    """What its author tells compilers about it."""
    vmap: Literal["leading"] | tuple[str, ...] | None = None
    """The tensors whose leading dimensions are a batch of calls, all of which broadcast where it is `leading`."""
    formula: Formula | None = None
    extras: Extras | None = None
    fake: Callable[..., Any] | None = None
    """The function that says what its results look like."""
    kernels: tuple[KernelSpec, ...] = ()
    samples: tuple[Draws, ...] = ()
    rejects: tuple[Draws, ...] = ()
    cost: Callable[..., Cost] | None = None
    families: tuple[Family, ...] = ()
    """Calls to measure."""
    variants: tuple[Variant, ...] = ()
    """Who else computes them."""
    sharding: Sharding | None = None
    """How its tensors may be cut among devices; None: what follows from the rest."""
    doc: str | None = None
    """What it says of itself; None: what its reference says."""
    adopted: Any = None
    """What was written without opwright and runs as its kernel."""

    @property
    def qualname(self) -> str:
        """Its name with its namespace, as the dispatcher has it."""
        return f"{self.namespace}::{self.name}"

    @cached_property
    def written(self) -> tuple[Parameter, ...]:
        """The parameters that it writes to."""
        return tuple(p for p in self.signature.parameters if p.mutated)

    @property
    def file(self) -> str | None:
        """The file that defines its reference."""
        if not inspect.isfunction(self.reference):
            return None
        return inspect.getsourcefile(inspect.unwrap(self.reference))

    @property
    def declared(self) -> dict[str, Any]:
        """What its author said after it was made, field by field."""
        return {name: getattr(self, name) for name in _LATER}

    @property
    def bare(self) -> Spec:
        """It as it was made, before anything else was said."""
        nothing: dict[str, Any] = {f.name: f.default for f in fields(self) if f.name in _LATER}
        return replace(self, **nothing)

    def runs_like(self, other: Spec) -> bool:
        """Whether calls do the same under another spec of the same reference."""
        mine = (self.formula, self.extras, self.fake, self.kernels)
        return mine == (other.formula, other.extras, other.fake, other.kernels)

    def differentiates_like(self, other: Spec) -> bool:
        """Whether the same gradient follows from another spec of the same reference."""
        return (self.formula, self.extras) == (other.formula, other.extras)


_LATER = ("formula", "extras", "fake", "kernels", "samples", "rejects", "cost", "families", "variants", "sharding")
