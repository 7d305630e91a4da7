"""The in-place form of an operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from opwright.kit.spec.require import spell
from opwright.kit.spec.schema import Signature
from opwright.kit.spec.values import tensors


def in_place(name: str, signature: Signature, reference: Callable[..., Any]) -> tuple[Signature, Callable[..., Any]]:
    """The form of an operator that writes its result into its first argument."""
    first = next(iter(signature.parameters), None)
    if (
        first is None
        or first.kind.schema != "Tensor"
        or not signature.single
        or signature.outputs[0].kind.schema != "Tensor"
    ):
        raise TypeError(f"{name}: only an operator from a Tensor to one Tensor has an in-place form")
    written = f"{name}_"

    def reference_in_place(*args: Any, **kwargs: Any) -> Tensor:
        values = signature.bind(args, kwargs)
        target: Tensor = values[first.name]
        if torch.is_grad_enabled() and any(t.requires_grad for v in values.values() for t in tensors(v)):
            # What the reference saves for its backward must survive the write.
            values[first.name] = target.clone()
        plain = [values[p.name] for p in signature.parameters if not p.keyword_only]
        result = reference(*plain, **{p.name: values[p.name] for p in signature.parameters if p.keyword_only})
        if result.shape != target.shape:
            raise ValueError(
                f"{written}: the result has shape {spell(result.shape)} and cannot be written into "
                f"{first.name} of shape {spell(target.shape)}"
            )
        if _breadth(result.dtype) > _breadth(target.dtype):
            raise TypeError(
                f"{written}: the result is {spell(result.dtype)} and cannot be written into "
                f"{first.name} of type {spell(target.dtype)}"
            )
        return target.copy_(result)

    parameters = (replace(first, mutated=True), *signature.parameters[1:])
    return Signature(parameters, (), None, single=False, returns_input=first.name), reference_in_place


def _breadth(dtype: torch.dtype) -> int:
    """A value can be written into a dtype that is at least as broad (torch.can_cast, which Dynamo cannot trace)."""
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype != torch.bool)
