"""Random numbers: whether a reference drew any, and with what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from opwright.kit.captured import named


def generators_of(function: Callable[..., Any]) -> list[torch.Generator]:
    """The generators that a function names, beside PyTorch's own."""
    return [g for _, g in named(function) if isinstance(g, torch.Generator)]


def states(given: Iterable[Tensor] | None = None, own: Iterable[torch.Generator] = ()) -> list[Tensor]:
    """The states of the generators that a function may draw from: PyTorch's, on the GPUs of the tensors that it is
    given (None: on all), and its own."""
    found = [torch.get_rng_state()]
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        known = torch.cuda.default_generators
        gpus = range(len(known)) if given is None else sorted({t.get_device() for t in given if t.is_cuda})
        found += [known[gpu].get_state() for gpu in gpus]
    return found + [g.get_state() for g in own]


def same(before: list[Tensor], after: list[Tensor]) -> bool:
    """Whether nobody drew in between."""
    return len(before) == len(after) and all(map(torch.equal, before, after))


def culprit(run: Callable[[], object]) -> str:
    """The operator with which `run` draws random numbers; empty when it draws none. What it computes is not used."""
    watch = _Watch()
    with watch:
        try:
            run()
        except Exception:  # an operator that no mode can look into: that it ran is known, and that somebody drew
            return watch.seen or "in an operator that cannot be watched"
    return watch.seen


class _Watch(TorchDispatchMode):
    """Notices operators that draw random numbers, in this thread alone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # a dropout that is switched off draws nothing: what it is made of tells
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if torch.Tag.nondeterministic_seeded in func.tags and not _switched_off(func, args, kwargs):
            self.seen = self.seen or str(func)
        return func(*args, **kwargs)


def _switched_off(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operator that may draw was told not to: attention without dropout, a layer that is not trained."""
    values = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    values |= {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    return values.get("dropout_p") == 0 or values.get("training") is False or values.get("train") is False
