"""What is asked of a reference when it first runs: does it return its input, write to it, draw random numbers?

Each of these would be harmless in a plain function and wrong in an operator: autograd, functionalization and
every kernel that replaces the reference rely on the schema's word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opwright.kit.schema import Signature
from opwright.kit.values import tensors


class BadReference(TypeError):
    """The reference breaks a rule that every operator keeps; the message says how to mend it."""


class State:
    """Runs a reference with the questions asked, until it has once answered them well."""

    def __init__(
        self, name: str, signature: Signature, reference: Callable[..., Any], random: bool, gradient: bool
    ) -> None:
        self.name, self.signature, self.reference, self.random = name, signature, reference, random
        self.gradient = gradient
        self.fresh = True

    def run(self, *args: Any, **kwargs: Any) -> Any:
        if wrapped():
            return self.reference(*args, **kwargs)
        given = self._given(args, kwargs)
        inputs = [t for _, t in given]
        versions = [_version(t) for t in inputs]
        before = None if self.random else random_state(inputs)
        out = self.reference(*args, **kwargs)
        for (parameter, t), version in zip(given, versions, strict=True):
            if _version(t) != version and not self.signature.names[parameter].mutated:
                raise BadReference(
                    f"{self.name}: the reference writes to its argument {parameter!r}; declare it with "
                    f"@ow.op(mutates=({parameter!r},)), or work on {parameter}.clone()"
                )
        if before is not None and not same(before, random_state(inputs)):
            raise BadReference(
                f"{self.name}: the reference draws random numbers; declare it with @ow.op(random=True), so that its "
                f"derivatives are never computed by drawing again"
            )
        if self.signature.returns_input is None and not self.gradient:
            refuse_alias(self.name, given, out)
        self.fresh = False
        return out

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Tensor]]:
        named = list(zip((p.name for p in self.signature.parameters), args, strict=False)) + list(kwargs.items())
        return [(name, t) for name, value in named for t in tensors(value)]


def refuse_alias(name: str, given: list[tuple[str, Tensor]], out: Any) -> None:
    """Raise when an output shares memory with an input or with another output."""
    seen: list[Tensor] = []
    for result in tensors(out):
        for parameter, t in given:
            if aliases(result, t):
                what = parameter if result is t else f"a view of {parameter}"
                raise BadReference(
                    f"{name}: the reference returns {what}, and an operator's result is memory of its own; "
                    f"return a copy (for example `.clone()`) on this path"
                )
        if any(aliases(result, t) for t in seen):
            raise BadReference(f"{name}: two results of the reference share memory; return `.clone()` of one of them")
        seen.append(result)


def unalias(given: list[Tensor], out: Any) -> Any:
    """The same results, each in memory of its own. A gradient may well be the gradient that came in."""
    taken = list(given)

    def own(value: Any) -> Any:
        if isinstance(value, Tensor):
            if any(aliases(value, t) for t in taken):
                value = value.clone()
            taken.append(value)
            return value
        return [own(v) for v in value] if isinstance(value, list) else value

    return tuple(own(v) for v in out)


def wrapped() -> bool:
    """Whether a transform or a mode stands between the caller and real memory, so that nothing can be asked."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None  # type: ignore[attr-defined]
        or torch._C._len_torch_dispatch_stack() > 0
    )


def aliases(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share memory, as far as they can be asked: a transform's wrapper cannot."""
    if a is b:
        return True
    if a.layout != torch.strided or b.layout != torch.strided or a.numel() == 0:
        return False
    return bool(torch._C._is_alias_of(a, b))  # type: ignore[attr-defined]


def _version(t: Tensor) -> int:
    return -1 if t.is_inference() else t._version


def random_state(inputs: list[Tensor]) -> list[Tensor]:
    states = [torch.get_rng_state()]
    for index in sorted({t.device.index for t in inputs if t.is_cuda}):
        states.append(torch.cuda.get_rng_state(index))
    return states


def same(before: list[Tensor], after: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
