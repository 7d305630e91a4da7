"""Inputs an operator is tried on: its samples, and what it must reject."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from opwright.kit.spec.values import has_gradient, like, tensors

if TYPE_CHECKING:
    from opwright.kit.op import Op


@dataclass(frozen=True)
class Sample:
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reject:
    """A call that must raise `error` with `message` in its text."""

    error: type[Exception]
    message: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


class Maker:
    """Makes the tensors of samples: of one dtype, on one device, reproducibly from a seed.

    >>> make = Maker(torch.float32)
    >>> make(2, 3).shape, make(2, dtype=torch.int64, low=0, high=5).dtype
    (torch.Size([2, 3]), torch.int64)
    """

    def __init__(self, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0) -> None:
        self.dtype, self.device = dtype, torch.device(device)
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, dtype: torch.dtype | None = None, low: float = -2.0, high: float = 2.0) -> Tensor:
        """A tensor with values between `low` and `high` (for integers: `high` excluded)."""
        dtype = dtype or self.dtype
        if dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=self.generator).to(self.device, dtype)
        if not dtype.is_floating_point and not dtype.is_complex:
            low = max(low, 0) if dtype == torch.uint8 else low
            return torch.randint(int(low), int(high), shape, generator=self.generator).to(self.device, dtype)
        wide = torch.complex128 if dtype.is_complex else torch.float64
        drawn = torch.rand(shape, generator=self.generator, dtype=wide)
        offset = complex(low, low) if dtype.is_complex else low
        return (drawn * (high - low) + offset).to(self.device, dtype)


def read_sample(name: str, drawn: Any) -> Sample:
    """A sample as its author yields it: one argument, or a tuple of them with a dict of keywords last."""
    args = drawn if isinstance(drawn, tuple) else (drawn,)
    if args and isinstance(args[-1], dict):
        return Sample(args[:-1], args[-1])
    return Sample(args)


def read_reject(name: str, drawn: Any) -> Reject:
    """A rejected call as its author yields it: the error, a part of its message, the arguments."""
    if not (isinstance(drawn, tuple) and len(drawn) == 3 and isinstance(drawn[0], type)):
        raise TypeError(f"{name}: rejects yields (error, message, arguments), got {drawn!r}")
    sample = read_sample(name, drawn[2])
    return Reject(drawn[0], drawn[1], sample.args, sample.kwargs)


def samples_of_rung(below: Op[..., Any], above: Op[..., Any], make: Maker) -> list[Sample]:
    """Samples for a rung: those of the operator below it, with what it saves and random incoming gradients."""
    drawn = (rung_sample(below, above, make, sample) for sample in below.draw_samples(make))
    return [sample for sample in drawn if sample is not None]


def rung_sample(below: Op[..., Any], above: Op[..., Any], make: Callable[..., Tensor], sample: Sample) -> Sample | None:
    """The sample of a rung that goes with a sample of the operator below it; None where that has no gradient."""
    rung = above.rung
    assert rung is not None
    values = below.signature.bind(sample.args, sample.kwargs)
    if not any(has_gradient(t) for p in below.signature.differentiable_inputs for t in tensors(values[p.name])):
        return None
    form = below.recorded_form
    with torch.no_grad():
        out = form.calls.direct(*sample.args, **sample.kwargs)
    outputs = (out,) if form.signature.single else tuple(out)
    given: dict[str, Any] = {}
    for name, index in zip(rung.grads, below.signature.differentiable_outputs, strict=True):
        incoming = [make(*t.shape, dtype=t.dtype) for t in tensors(outputs[index])]
        if not all(map(has_gradient, incoming)):
            if not rung.signature.names[name].kind.is_optional:
                return None
            given[name] = None  # an output of integers beside others has no gradient
            continue
        given[name] = incoming if isinstance(outputs[index], list) else next(iter(incoming), None)
    if all(grad is None for grad in given.values()):
        return None
    for name in rung.inputs:
        value = values[name]
        given[name] = like(value) if rung.signature.names[name].like and value is not None else value
    given.update({name: outputs[index] for name, index in rung.outputs.items()})
    given.update({name: None for name, flag in rung.when.items() if not values[flag]})
    parameters = [p for p in rung.signature.parameters if p.name in given]
    return Sample(
        tuple(given[p.name] for p in parameters if not p.keyword_only),
        {p.name: given[p.name] for p in parameters if p.keyword_only},
    )
