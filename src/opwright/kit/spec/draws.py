"""Random numbers: whether a reference drew any, and with what."""

from __future__ import annotations

import pickle
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.spec.captured import named


def generators_of(function: Callable[..., Any]) -> list[Any]:
    """The generators that a function may draw from beside PyTorch's: those that it names, Python's and NumPy's."""
    numpy = sys.modules.get("numpy.random")
    kinds = (torch.Generator, random.Random, *((numpy.Generator, numpy.RandomState) if numpy is not None else ()))
    shared = [random._inst, *([numpy.mtrand._rand] if numpy is not None else [])]  # type: ignore[attr-defined]
    return [*shared, *(g for _, g in named(function) if isinstance(g, kinds))]


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return pickle.dumps((getattr(generator, "bit_generator", None) or generator._bit_generator).state)


def states(given: Iterable[Tensor] | None = None, own: Iterable[Any] = ()) -> list[Any]:
    """The states of the generators that a function may draw from: PyTorch's, on the GPUs of the tensors that it is
    given (None: on all), and others that it may use."""
    found = [torch.get_rng_state()]
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        known = torch.cuda.default_generators
        gpus = range(len(known)) if given is None else sorted({t.get_device() for t in given if t.is_cuda})
        found += [known[gpu].get_state() for gpu in gpus]
    return found + [_state(g) for g in own]


def same(before: list[Any], after: list[Any]) -> bool:
    """Whether nobody drew in between."""
    return len(before) == len(after) and all(map(_equal, before, after))


def _equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else bool(a == b)


def culprit(run: Callable[[], object], read: Callable[[], list[Any]], own: Sequence[Any] = ()) -> str:
    """What `run` draws random numbers with; empty when it draws none, as far as can be told. `read` gives the states
    of generators, of which `own` are not PyTorch's. What `run` computes is not used."""
    watch, before = _Watch(), read()
    with watch:
        try:
            run()
        except Exception:  # of an operator that is not to be run under a mode
            watch.blind = True
    if watch.seen:
        return watch.seen
    for generator in own:
        if _moves(generator, run):
            return f"with {type(generator).__module__}.{type(generator).__name__}"
    # Something drew, in there or in another thread: guilt is certain only when there is none.
    alone = watch.blind and threading.active_count() == 1
    return "in an operator that cannot be watched" if alone and not same(before, read()) else ""


def _moves(generator: Any, run: Callable[[], object]) -> bool:
    """Whether a generator moves whenever `run` runs, and never while it does not, as it would for another thread."""
    for _ in range(3):
        before = _state(generator)
        run()
        after = _state(generator)
        time.sleep(0.002)
        if _equal(before, after) or not _equal(after, _state(generator)):
            return False
    return True


class _Watch(private.TorchDispatchMode):
    """Notices operators that draw random numbers, in this thread alone."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = ""
        self.blind = False
        """Whether something ran that cannot be looked into."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Dynamo would else leave alone for good what it meets under a mode: torch.cond, from then on, would fail."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, private.HigherOrderOperator):
            self.blind = True
            return func(*args, **kwargs)  # type: ignore[no-untyped-call]
        if private.has_kernel(func.name(), "CompositeImplicitAutograd"):
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
