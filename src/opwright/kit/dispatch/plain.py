"""Functions of a built library that belong to no operator: called as they are, without a reference and a gradient."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from opwright.kit import locks, private
from opwright.kit.build.bound import Bound
from opwright.kit.build.library import Library
from opwright.kit.derive.refused import refuse_derivative
from opwright.kit.derive.vjp import differentiated
from opwright.kit.dispatch.untraced import untraced
from opwright.kit.spec.values import tensors

NAMESPACE = "opwright_inline"

_lock = locks.settled(locks.REGISTER)
_defined: dict[str, torch.library.Library] = {}


def function(library: Library, name: str, doc: str) -> Callable[..., Any]:
    """The function that a loaded library binds under a name, on each device that it is bound for."""
    bound = [b for b in library.bound if b.op == name]
    on: dict[str, Callable[..., Any]] = {b.device: _overload(b, str(library.key)) for b in bound}
    if not any("Tensor" in b.parameters for b in bound):  # nothing tells the dispatcher which device is meant
        on = {device: partial(run.redispatch, _keys(device)) for device, run in on.items()}  # type: ignore[attr-defined]
    takes = bound[0].parameters.split(",") if bound[0].parameters else []
    written = bound[0].written
    lacks = (
        f"{name}: it has no gradient, as a function of source strings; make an operator with @ow.op and a reference, "
        f"and {name} its kernel by kernel_source"
    )

    def call(*args: Any) -> Any:
        if len(args) != len(takes):
            raise TypeError(f"{name}: it takes {len(takes)} arguments ({', '.join(takes)}), got {len(args)}")
        given = [t for value in args for t in tensors(value)]
        updated = [t for i in written for t in tensors(args[i])]
        if updated and torch.is_grad_enabled() and any(t.requires_grad for t in given):
            raise RuntimeError(
                f"{name}: it writes to a tensor, and what it takes requires a gradient, which it does not have; call "
                f"it under torch.no_grad()"
            )
        device = given[0].device.type if given else "cpu"
        run = on.get(device)
        if run is None:
            raise NotImplementedError(f"{name}: it is built for {' and '.join(on)}, got a tensor on {device}")
        try:
            recording = differentiated(given)
            with torch.no_grad() if recording else contextlib.nullcontext():
                out = run(*args)
        except RuntimeError as e:
            raise _told(name, takes, args, e) from None
        for t in updated:
            if not t.is_inference():
                torch.autograd.graph.increment_version(t)  # what was saved of it is not what it was
        return refuse_derivative(lacks, out, given) if recording and tensors(out) else out

    call.__name__ = call.__qualname__ = name
    call.__doc__ = "\n".join(filter(None, (doc, f"{bound[0].function}({', '.join(takes)}) -> {bound[0].results}")))
    return untraced(call)


def _told(name: str, takes: Sequence[str], args: Sequence[Any], e: RuntimeError) -> Exception:
    """What the dispatcher says of an argument that it does not take, in our words; any other error as it is."""
    found = re.search(r"Expected a value of type '(.+?)' for argument 'a(\d+)' but instead found type '(.+?)'", str(e))
    if found is not None:
        return TypeError(f"{name}: argument {int(found[2]) + 1} must be a {found[1]}, got {found[3]}")
    for i, (kind, value) in enumerate(zip(takes, args, strict=True)):
        if value is None and kind == "Tensor":  # which PyTorch lets through, as a tensor that is not there
            return TypeError(f"{name}: argument {i + 1} must be a Tensor, got None")
        if isinstance(e, NotImplementedError) and any(t.layout != torch.strided for t in tensors(value)):
            layouts = ", ".join(str(t.layout) for t in tensors(value))
            return TypeError(f"{name}: argument {i + 1} must be a strided Tensor, got one of layout {layouts}")
    return type(e)(f"{name}: {e}") if str(e).startswith("no kernel for ") else e


def _mutable(kind: str, i: int) -> str:
    """A type in a schema, of what is written to."""
    return kind.replace("Tensor", f"Tensor(w{i}!)", 1)


def _keys(device: str) -> Any:
    return private.DispatchKeySet(private.parse_key(device.upper()))


def _overload(bound: Bound, key: str) -> Any:
    """What the dispatcher calls; its schema is what the library says of the function."""
    overload = f"{bound.device}_{key}"
    qualname = f"{bound.op}.{overload}"
    kinds = enumerate(filter(None, bound.parameters.split(",")))
    takes = [f"{_mutable(kind, i) if i in bound.written else kind} a{i}" for i, kind in kinds]
    with _lock:
        if qualname not in _defined:
            # Kept for good: what was defined here goes when it does.
            library = torch.library.Library(NAMESPACE, "FRAGMENT")
            library.define(f"{qualname}({', '.join(takes)}) -> ({bound.results})")
            _defined[qualname] = library
    return getattr(getattr(getattr(torch.ops, NAMESPACE), bound.op), overload)
