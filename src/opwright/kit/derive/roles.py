"""What an operator is to others: itself, the gradient of one, one with extra results, or one in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from opwright.kit import private
from opwright.kit.derive import derive, keeping
from opwright.kit.derive.derive import Missing, Rung
from opwright.kit.derive.refused import refuse_derivative
from opwright.kit.spec.samples import Maker, Sample, read_sample, samples_of_rung
from opwright.kit.spec.schema import Signature
from opwright.kit.spec.values import tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op
    from opwright.kit.spec.operator import Formula, Spec


class Role:
    """An operator that stands for itself; the others say where they differ."""

    is_gradient = False
    rung: Rung | None = None
    """What it computes where it is a gradient, and from what."""
    functional: Op[..., Any] | None = None
    """The operator that it computes in place."""
    takes_caches = False
    """Whether arguments of it only repeat what follows from the others. Seen through, it would be differentiated with
    these held fixed."""

    @property
    def parent(self) -> Op[..., Any] | None:
        """The operator whose gradient it is."""
        return None

    @property
    def form_of(self) -> Op[..., Any] | None:
        """The operator that it computes together with extra results."""
        return None

    @property
    def below(self) -> Op[..., Any] | None:
        """The operator that it belongs to and is named after."""
        return self.parent or self.form_of

    def spoken(self, name: str) -> str:
        """The name under which it rejects arguments."""
        return name

    def gradient(self, spec: Spec, formula: Formula | None) -> Rung | Missing:
        """What its gradient takes and computes, given a formula for it or none; or why there is none."""
        return _gradient(spec, spec.signature, spec.reference, formula)

    def why_once(self, name: str) -> str | None:
        """Why it has no gradient, where its author has declared the operator differentiable once."""
        return None

    def truth(self, op: Op[..., Any]) -> Callable[..., Any]:
        """The function that its derivatives are derivatives of."""
        return op.reference

    def samples(self, op: Op[..., Any], make: Maker) -> list[Sample]:
        """The calls that it must be right on."""
        return [read_sample(op.name, drawn) for declared in op.spec.samples for drawn in declared(make)]


class Gradient(Role):
    """The gradient of an operator."""

    rung: Rung
    is_gradient = True

    def __init__(self, of: Op[..., Any], rung: Rung) -> None:
        self.of, self.rung = of, rung

    @property
    def parent(self) -> Op[..., Any]:
        return self.of

    @property
    def takes_caches(self) -> bool:  # type: ignore[override]
        return self.rung.extras is not None

    def gradient(self, spec: Spec, formula: Formula | None) -> Rung | Missing:
        if not self.takes_caches:
            return _gradient(spec, spec.signature, spec.reference, formula, of_gradient=True)
        if self.rung.total is None:
            return Missing(str(self.why_once(spec.name)))
        return _gradient(spec, self.rung.bare, self.rung.total, formula, of_gradient=True)

    def why_once(self, name: str) -> str | None:
        if not self.takes_caches or self.rung.total is not None:
            return None
        home = self.of.home.name
        return (
            f"{name}_backward: there is no such gradient operator, since {home} is declared differentiable once; "
            f"declare it with @{home}.saving(…) without once=True"
        )

    def truth(self, op: Op[..., Any]) -> Callable[..., Any]:
        return op.reference if self.rung.total is None else self.without_caches

    def without_caches(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The gradient from the inputs alone, where it takes extra results."""
        if self.rung.total is None:
            raise TypeError(self.why_once(f"{self.of.name}_backward"))
        values = self.rung.signature.bind(args, kwargs)
        total: tuple[Any, ...] = self.rung.total(**{n: values[n] for n in self.rung.bare.names if n in values})
        return total

    def samples(self, op: Op[..., Any], make: Maker) -> list[Sample]:
        return super().samples(op, make) if op.spec.samples else samples_of_rung(self.of, op, make)


class SavingForm(Role):
    """The form of an operator that returns extra results for its gradient beside the outputs."""

    def __init__(self, of: Op[..., Any]) -> None:
        self.of = of

    @property
    def form_of(self) -> Op[..., Any]:
        return self.of

    def spoken(self, name: str) -> str:
        return self.of.name

    def samples(self, op: Op[..., Any], make: Maker) -> list[Sample]:
        return super().samples(op, make) if op.spec.samples else self.of.draw_samples(make)


class InPlace(Role):
    """The form of an operator that writes its result into its first argument."""

    functional: Op[..., Any]

    def __init__(self, functional: Op[..., Any]) -> None:
        self.functional = functional


def _gradient(
    spec: Spec,
    signature: Signature,
    reference: Callable[..., Any],
    formula: Formula | None,
    of_gradient: bool = False,
) -> Rung | Missing:
    function, when = (None, None) if formula is None else (formula.function, formula.when)
    found = derive.rung_above(spec.name, signature, reference, function, spec.random, spec.extras, of_gradient, when)
    if formula is None or isinstance(found, Missing):
        return found
    if found.total is not None and formula.surrogate:
        found = replace(found, total=_by_formula(signature, found))
    elif found.total is not None and spec.fake is not None:
        found = replace(found, total=_followed(spec.name, found.total))
    return found if formula.needs is None else keeping.with_needs(spec.name, signature, found, formula.needs)


def _followed(name: str, total: Callable[..., Any]) -> Callable[..., Any]:
    """A gradient that was derived from a reference which PyTorch may not be able to follow, through NumPy for one: then
    it depends on nothing, and must not be taken for a constant."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        out = total(*args, **kwargs)
        given = [t for value in (*args, *kwargs.values()) for t in tensors(value)]
        lost = any(t.requires_grad for t in given) and not any(t.requires_grad for t in tensors(list(out)))
        # Where torch.export decomposes, operators that it keeps have no derivatives, and need none.
        if not lost or not torch.is_grad_enabled() or private.transforms() or private.modes():
            return out
        why = f"{name}_backward: PyTorch cannot differentiate it, since the reference of {name} leaves PyTorch"
        return tuple(refuse_derivative(why, each, given) for each in out)

    return checked


def _by_formula(signature: Signature, rung: Rung) -> Callable[..., Any]:
    """A gradient that takes extra results, from the inputs alone: the formula, with its caches computed again."""
    bare, saving = rung.bare, rung.extras
    assert saving is not None

    def total(*args: Any, **kwargs: Any) -> Any:
        values = bare.bind(args, kwargs)
        out = saving.function(**{name: values[name] for name in signature.names})
        return rung.reference(**values, **{name: out[index] for name, index in rung.outputs.items()})

    return total
