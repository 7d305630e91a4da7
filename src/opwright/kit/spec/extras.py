"""Extra results: what an operator computes beside its outputs when a gradient will be wanted, and only then."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from opwright.kit.spec.kinds import TENSOR
from opwright.kit.spec.schema import Output, Signature


@dataclass(frozen=True, eq=False)
class Extras:
    """What the second function of an operator returns beside the outputs, for the gradient alone."""

    names: tuple[str, ...]
    function: Callable[..., Any]
    """What its author wrote, which takes the operator's parameters by name."""
    once: bool
    """Whether the operator is differentiable once, so that its inputs need not be kept for a second derivative."""

    def add_to(self, below: Signature) -> Signature:
        """The signature of the form that returns outputs and extras."""
        outputs = (*below.outputs, *(Output(name, TENSOR, differentiable=False) for name in self.names))
        return Signature(below.parameters, outputs, None, single=False)


def result_names(below: Signature) -> list[str]:
    """What gradients call an operator's outputs."""
    alone = len(below.outputs) == 1
    return [o.name or ("result" if alone else f"result{i}") for i, o in enumerate(below.outputs)]


def read_extras(
    name: str, below: Signature, names: tuple[str, ...], once: bool, random: bool, is_rung: bool
) -> Callable[[Callable[..., Any]], Extras]:
    """The extra results that an author declares, or TypeError that says how to fix it."""
    if not names or not all(isinstance(n, str) and n.isidentifier() and n.isascii() for n in names):
        raise TypeError(f'{name}: name its extra results, for example @{name}.saving("gates"), got {names!r}')
    known = [*below.names, *result_names(below), *(f"grad_{n}" for n in result_names(below)), "grad", "wanted"]
    taken = next((n for i, n in enumerate(names) if n in known or n in names[:i]), None)
    if taken is not None:
        raise TypeError(f"{name}: an extra result cannot be called {taken!r}, which the gradient knows already")
    if random or below.returns_input:
        does = "draws random numbers" if random else "works in place"
        raise TypeError(
            f"{name}: it {does}, so autograd records what its reference does and extra results would not be used; "
            f"return what the gradient needs as an output"
        )
    if is_rung:
        raise TypeError(f"{name}: a gradient operator has no extra results of its own")
    return lambda function: Extras(names, function, once)


def saving_reference(
    name: str, below: Signature, extras: Extras, function: Callable[..., Any]
) -> Callable[..., tuple[Any, ...]]:
    """The reference of the form that saves: the author's function, with the extras cut from every derivative."""
    given = list(inspect.signature(function).parameters) if callable(function) else []
    if given != list(below.names):
        raise TypeError(
            f"{name}: the function that saves must take the parameters of {name} ({', '.join(below.names)}), "
            f"got ({', '.join(given)})"
        )
    count = len(below.outputs) + len(extras.names)

    @functools.wraps(function)
    def reference(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        out = function(**below.bind(args, kwargs))  # it need not repeat the defaults
        if not isinstance(out, tuple) or len(out) != count:
            raise TypeError(
                f"{name}: the function that saves must return {count} results ({len(below.outputs)} of {name}, then "
                f"{', '.join(extras.names)}), got {len(out) if isinstance(out, tuple) else type(out).__name__}"
            )
        return (
            *out[: len(below.outputs)],
            *(t.detach() if isinstance(t, Tensor) else t for t in out[-len(extras.names) :]),
        )

    return reference
