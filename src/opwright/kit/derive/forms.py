"""The operators that follow from one: its gradient, the form that saves extra results, and the one in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from opwright.kit.derive import in_place as written
from opwright.kit.spec.extras import saving_reference
from opwright.kit.spec.operator import Spec

if TYPE_CHECKING:
    from opwright.kit.derive.derive import Rung
    from opwright.kit.spec.extras import Extras

_OF_THE_FORWARD = (torch.Tag.pointwise, torch.Tag.reduction)
"""What need not hold of a gradient: that of one who broadcasts sums."""


def gradient(spec: Spec, rung: Rung) -> Spec:
    """The gradient of an operator, as an operator."""
    return Spec(
        f"{spec.name}_backward", spec.namespace, spec.origin, rung.signature, rung.reference, opaque=spec.opaque,
        tags=tuple(tag for tag in spec.tags if tag not in _OF_THE_FORWARD), doc=f"The gradient of {spec.name}.",
    )  # fmt: skip


def saving(spec: Spec, extras: Extras) -> Spec:
    """The form of an operator that returns extra results as well."""
    signature, reference = spec.signature, saving_reference(spec.name, spec.signature, extras, extras.function)
    return Spec(
        f"{spec.name}_saving", spec.namespace, spec.origin, extras.add_to(signature), reference, opaque=spec.opaque,
        tags=spec.tags,
        doc=f"{spec.name}, and {', '.join(extras.names)} for its gradient.",
    )  # fmt: skip


def in_place(spec: Spec, reference: Callable[..., Any]) -> Spec:
    """The form of an operator that writes into its first argument what `reference` computes."""
    signature, function = written.in_place(spec.name, spec.signature, reference)
    function.__module__ = spec.reference.__module__
    plain = Spec(f"{spec.name}_", spec.namespace, spec.origin, signature, function)
    return replace(
        plain, random=spec.random, opaque=spec.opaque, compile=spec.compile, autocast=spec.autocast,
        tags=spec.tags,
        doc=f"{spec.name}, written into {signature.returns_input}.",
    )  # fmt: skip
