"""The ways back from C++: calls that it does not serve itself, run in Python.

C++ knows a way by its number, and one operator for all of them stands between the two: an operator of its own for each
way would cost every operator some 30 KiB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from opwright.kit import private
from opwright.kit.dispatch import registry
from opwright.kit.dispatch.untraced import untraced
from opwright.kit.spec.schema import Signature

Run = Callable[..., Any]

_ways: list[tuple[Signature, Run]] = []
_library: torch.library.Library | None = None


def reference(entry: registry.Entry) -> int:
    """Always runs the reference."""
    return _number(entry, "reference", lambda *args, **kwargs: entry.op.run_differentiated(*args, **kwargs))


def unrouted(entry: registry.Entry) -> int:
    """Runs what C++ knows no kernel for."""
    return _number(entry, "unrouted", lambda *args, **kwargs: entry.op.run_unrouted(*args, **kwargs))


def rejecting(entry: registry.Entry) -> int:
    """Raises what the reference would."""
    return _number(entry, "rejecting", lambda *args, **kwargs: entry.op.run_rejecting(*args, **kwargs))


def gradient(entry: registry.Entry, above: Any) -> int:
    """Runs a gradient that has no kernels; `above` is that gradient, which calls recorded with it keep."""

    def run(*args: Any, **kwargs: Any) -> Any:
        watched = private.modes() or private.innermost_transform() is not None
        watched = watched or registry.any_distributed((*args, *kwargs.values()))
        if watched or (above.opaque and torch.is_grad_enabled()):
            return above.overload(*args, **kwargs)  # a graph must hold it under its own name, and DTensor ask for rules
        return above.run_reference(*args, **kwargs)

    return _number(entry, above, run, above.signature)


def _number(entry: registry.Entry, kind: Any, run: Run, signature: Signature | None = None) -> int:
    with registry.lock:
        if kind not in entry.ways:
            _answer()
            entry.ways[kind] = len(_ways)
            _ways.append((signature or entry.op.signature, run))
        return entry.ways[kind]


def _answer() -> None:
    global _library
    if _library is None:
        _library = torch.library.Library("opwright_native", "IMPL")
        _library.impl("run", untraced(_run), "CompositeExplicitAutograd")


def _run(number: int, given: list[Any]) -> tuple[list[Any], list[int]]:
    signature, run = _ways[number]
    positional, named = [], {}
    for p, value in zip(signature.parameters, given, strict=True):
        read = _reader(p.kind.schema)
        value = value if read is None else read(value)
        if p.keyword_only:
            named[p.name] = value
        else:
            positional.append(value)
    out = run(*positional, **named)
    results = () if not signature.outputs else (out,) if len(signature.outputs) == 1 else out
    flat: list[Any] = []
    counts: list[int] = []
    for result in results:
        several = isinstance(result, (list, tuple))
        flat += result if several else [result]
        counts.append(len(result) if several else -1)
    return flat, counts


@cache
def _reader(schema: str) -> Callable[[Any], Any] | None:
    """What makes values of a kind of what C++ passes for them; None: they are passed as they are."""
    names = {"ScalarType": (torch.dtype, 0), "Layout": (torch.layout, 1), "MemoryFormat": (torch.memory_format, 2)}
    if schema.rstrip("?[]") not in names:
        return None
    kind, place = names[schema.rstrip("?[]")]
    known: dict[int, Any] = {}
    for each in {each for each in vars(torch).values() if isinstance(each, kind)}:
        asked: list[Any] = [None, None, None]
        asked[place] = each
        known[torch.ops.opwright_native.number_of(*asked)] = each

    def read(value: Any) -> Any:
        return (
            [known[v] for v in value] if isinstance(value, (list, tuple)) else None if value is None else known[value]
        )

    return read
