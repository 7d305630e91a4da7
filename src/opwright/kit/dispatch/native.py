"""The package's own C++: built by `make` and `opwright build` for the torch at hand, used when it is there."""

from __future__ import annotations

import os
import sys
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from opwright.kit import locks
from opwright.kit.build import cache, compile, own
from opwright.kit.build.trouble import Unavailable
from opwright.kit.dispatch import registry

if TYPE_CHECKING:
    from opwright.kit.dispatch.kernel import Kernel
    from opwright.kit.op import Op

LAYOUTS = ("any", "contiguous", "channels_last")


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
        entry = cache.look_up(cache.open_folder(), own.native().key)
        if entry is None:
            return "the C++ of opwright's own is not built (run `opwright build`)"
        with locks.loading:
            torch.ops.load_library(entry.to_load())
    except (Unavailable, OSError) as e:
        return str(e)
    return None


def route(op: Op[..., Any], device: str, kernels: list[Kernel]) -> None:
    """Let C++ choose between these built kernels of one device; what they do not take comes back to Python."""
    if available() is not None or not kernels:
        return
    name, device = op.overload.name(), device.upper()
    with locks.loading:
        _install(op, name, device, kernels)


def _install(op: Op[..., Any], name: str, device: str, kernels: list[Kernel]) -> None:
    for kernel in kernels:
        own = [kernel.domain.types.get(p.name, ()) for p in op.signature.parameters]
        dtypes = (*kernel.domain.dtypes, *(dtype for types in own for dtype in types))
        examples = [torch.empty(0, dtype=dtype) for dtype in dtypes]
        torch.ops.opwright_native.add_route(name, device, kernel.overload.name(), examples, _spec(op, kernel))
    ways = registry.define_unrouted(op).name(), registry.define_rejecting(op).name()
    torch.ops.opwright_native.install(name, device, *ways)


def unroute(overload: str) -> None:
    """Let every call come back to Python: the operator is another than before."""
    if available() is None:
        torch.ops.opwright_native.unroute(overload)


def _spec(op: Op[..., Any], kernel: Kernel) -> list[int]:
    """A domain as numbers, in the order in which router.cpp reads them."""
    domain = kernel.domain
    names = sorted({name for pattern in domain.patterns.values() for d in pattern.dimensions for name in d.names})
    numbers = [len(domain.dtypes), int(domain.mixed), int(domain.broadcast), LAYOUTS.index(domain.layout), len(names)]
    numbers.append(len(op.signature.parameters))
    for p in op.signature.parameters:
        ranks = domain.ranks.get(p.name)
        if ranks is None:
            ranks = range(0, 2**62)
        ranks = ranks if isinstance(ranks, range) else range(ranks, ranks + 1)
        most = sys.maxsize if ranks.stop == 2**62 else ranks.stop - 1
        pattern = domain.patterns.get(p.name)
        numbers += [int(p.name in domain.wide), len(domain.types.get(p.name, ()))]
        numbers += [int(p.kind.is_number), ranks.start, most]
        numbers += [len(pattern.dimensions), int(pattern.leading)] if pattern else [-1, 0]
        for d in pattern.dimensions if pattern else ():
            known = [names.index(name) for name in d.names] + [-1, -1]
            value = known[0] if d.size is None else d.size
            numbers += [int(d.size is not None), value, d.divisor, d.factor, known[1]]
    return numbers
