"""The package's own C++: built by `make` and `opwright build` for the torch at hand, used when it is there."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from opwright.kit import locks, private
from opwright.kit.build import compile, own
from opwright.kit.build.trouble import Refused, Unavailable
from opwright.kit.dispatch import registry, ways, wire

if TYPE_CHECKING:
    from opwright.kit.dispatch.kernel import Kernel
    from opwright.kit.op import Op
    from opwright.kit.spec.domain import Domain
    from opwright.kit.spec.schema import Parameter
    from opwright.kit.spec.sizes import Dimension

MOST_DIMENSIONS = 64
"""What kernel.h and PyTorch's own loops take; no kernel that is built takes more."""


def build(force: bool = False) -> None:
    """Build it; processes that start from now on use it."""
    compile.build(own.native(), force)


def warn_if_too_new() -> None:
    """Say once that this torch was not tried. For whoever calls an operator, not for whoever imports the package."""
    why = own.too_new()
    if why is not None and os.environ.get("OPWRIGHT_NATIVE", "") != "0":
        warnings.warn(f"opwright: {why}", RuntimeWarning, stacklevel=3)


@lru_cache
def available() -> str | None:
    """None when this process has it, else why not. It is looked up once: a process keeps what it started with."""
    if os.environ.get("OPWRIGHT_NATIVE", "") == "0":
        return "OPWRIGHT_NATIVE=0 forbids the C++ of opwright's own"
    why = own.too_new()
    if why is not None:
        return why
    try:
        entry = own.built("native", own.native)
        if entry is None:
            return "the C++ of opwright's own is not built (run `opwright build`)"
        library = entry.to_load()
        with locks.loading:
            torch.ops.load_library(library)
    except Refused as e:
        warnings.warn(f"opwright: {e}; Python does its work", RuntimeWarning, stacklevel=2)
        return str(e)
    except (Unavailable, OSError) as e:
        return str(e)
    # Of the copy that came first: a program in C++ may have brought one.
    return wire.difference(torch.ops.opwright_native.wire())


@lru_cache
def _take() -> Callable[[int], None]:
    """What takes a library's list of its kernels."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(torch.ops.opwright_native.offer())


def route(op: Op[..., Any], device: str, kernels: list[Kernel]) -> None:
    """Let C++ choose between these built kernels of one device; what they do not take comes back to Python."""
    if available() is not None or not kernels:
        return
    with locks.loading:
        entry = registry.entry_of(op.overload.name())
        routing = wire.Routing(
            op=op.overload.name(),
            device=device.upper(),
            reference=ways.unrouted(entry),
            rejecting=ways.rejecting(entry),
            routes=tuple(describe(op, kernel.domain, kernel.overload.name()) for kernel in kernels),
        )
        for library in dict.fromkeys(kernel.library for kernel in kernels):
            if library is not None and library.offered:
                _take()(library.offered)
        torch.ops.opwright_native.install(wire.words(routing))


def introduce(kind: type) -> None:
    """Tell C++ of a kind of tensor that knows all operators, so that it need not ask Python about each. It reads a
    tensor's type where Python's ABI has it, which a free-threaded Python or one that traces references does not."""
    if available() is None and not own.free_threaded() and not hasattr(sys, "getobjects"):
        with private.unwatched():
            torch.ops.opwright_native.introduce(id(kind))


def is_alone(qualname: str) -> bool:
    """Whether a library for C++ has brought an operator along, and no Python has it yet."""
    return bool(private.schemas_of("opwright_native::is_alone")) and torch.ops.opwright_native.is_alone(qualname)


def unroute(overload: str) -> None:
    """Let every call come back to Python: the operator is another than before."""
    if available() is None:
        torch.ops.opwright_native.unroute(overload)


def describe(op: Op[..., Any], domain: Domain, overload: str) -> wire.Route:
    """A kernel with its domain, as C++ is told of it; `overload`: what it answers to."""
    parameters = op.signature.parameters
    names = sorted({name for pattern in domain.patterns.values() for d in pattern.dimensions for name in d.names})
    return wire.Route(
        kernel=overload,
        dtypes=domain.dtypes,
        mixed=domain.mixed,
        broadcast=domain.broadcast,
        layout=domain.layout,
        arguments=tuple(_argument(domain, p) for p in parameters),
        required=tuple(i for i, p in enumerate(parameters) if p.kind.schema == "Tensor"),
        numbers=tuple(i for i, p in enumerate(parameters) if p.kind.is_number),
        texts=tuple(i for i, p in enumerate(parameters) if p.kind.words),
        names=len(names),
        patterns=tuple(
            wire.Pattern(i, pattern.leading, tuple(_dimension(d, names) for d in pattern.dimensions))
            for i, p in enumerate(parameters)
            if (pattern := domain.patterns.get(p.name))
        ),
        says=domain.says,
    )


def _argument(domain: Domain, p: Parameter) -> wire.Argument:
    ranks = domain.ranks.get(p.name, range(MOST_DIMENSIONS + 1))
    least, most = (ranks.start, ranks.stop - 1) if isinstance(ranks, range) else (ranks, ranks)
    types = domain.types.get(p.name, ())
    return wire.Argument(p.name in domain.wide, types, least, min(most, MOST_DIMENSIONS), p.kind.words)


def _dimension(d: Dimension, names: list[str]) -> wire.Dimension:
    name, plus, *_ = [*map(names.index, d.names), None, None]
    return wire.Dimension(d.size, name, plus, d.factor, d.divisor)
