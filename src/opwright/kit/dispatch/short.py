"""The short way from Python into the dispatcher: a call of an operator as one function in C++.

It needs Python's headers when it is built, by `make` and `opwright build`, and a Python with the global lock. Without
it a call runs the function that call.py generates, with the same result some tenths of a microsecond later.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
from typing import TYPE_CHECKING, Any

import torch

from opwright.kit import locks
from opwright.kit.build import compile, own
from opwright.kit.build.trouble import Refused, Unavailable
from opwright.kit.dispatch import native
from opwright.kit.spec.kinds import BASIC, NUMBER, TENSOR, Kind

if TYPE_CHECKING:
    from opwright.kit.op import Op

MODULE = "opwright_call"
_KINDS = {TENSOR: "tensor", NUMBER: "scalar", BASIC[float]: "real", BASIC[int]: "integer", BASIC[bool]: "boolean"}
_KINDS |= {BASIC[str]: "text"}
_LISTS = {TENSOR.schema: "tensors", BASIC[int].schema: "integers"}
"""What call.cpp calls the kinds of arguments that take the short way, and lists of them; the others are `other`."""

_module: Any = None
_asked = False
_opening = locks.settled(locks.NODE)


def build(force: bool = False) -> None:
    """Build it, if it can be; processes that start from now on use it."""
    wanted = own.call()
    if wanted is not None:
        compile.build(wanted, force)


def look() -> str | None:
    """None when calls take the short way, or will; else why they cannot."""
    if _module is not None:
        return None
    if own.free_threaded():
        return "it needs the global lock, which a free-threaded Python is built without"
    try:
        if own.built("call", own.call) is not None:
            return None
        return "Python's headers are missing" if own.call() is None else "it is not built"
    except (Unavailable, Refused, OSError) as e:
        return str(e)


def open_way(op: Op[..., Any]) -> None:
    """Let this operator's calls take the short way from now on, if there is one; the first to ask loads it."""
    global _asked
    with _opening:  # who comes second waits for what the first one loads
        if not _asked:
            _asked = True
            native.warn_if_too_new()
            _load(type(op))
    op._short = way(op)


def way(op: Op[..., Any]) -> Any:
    """The function in C++ that calls an opaque operator; None where Python has to."""
    if _module is None or op.registered is None or not op.opaque:
        return None
    name, _, overload = op.overload.name().partition(".")
    known = _module.kinds.split(", ")
    kinds = tuple((known.index(_kind(p.kind)), p.kind.is_optional, p.kind.words) for p in op.signature.parameters)
    names = [p.name for p in op.signature.parameters]
    returned = -1 if op.signature.returns_input is None else names.index(op.signature.returns_input)
    return _module.make(name, overload, kinds, returned, op.signature.container, op.signature.single, op._call)


def _kind(kind: Kind) -> str:
    """What the short way may take an argument for, as call.cpp names it; `other` always goes through Python."""
    item = kind.schema.removesuffix("?").removesuffix("[]")
    if kind.is_list and item in _LISTS:
        return _LISTS[item]
    if kind.words and not kind.encode:
        return "text"  # of which call.cpp takes these words, and no other
    spelled = {f"{none}{k.fast}": name for k, name in _KINDS.items() for none in ("", "{v} is None or ")}
    spelled |= {f"{{v}} is None or ({k.fast})": name for k, name in _KINDS.items()}
    return "other" if kind.encode else spelled.get(kind.fast, "other")


def _load(kind: type) -> None:
    global _module
    if native.available() is not None or own.free_threaded():
        return
    try:
        entry = own.built("call", own.call)
        if entry is None:
            return
        loader = importlib.machinery.ExtensionFileLoader(MODULE, entry.to_load())
        spec = importlib.util.spec_from_file_location(MODULE, loader.path, loader=loader)
        assert spec is not None
        with locks.loading:
            loaded = importlib.util.module_from_spec(spec)
            loader.exec_module(loaded)
            if not {"other", *_LISTS.values(), *_KINDS.values()} <= {*loaded.kinds.split(", ")}:
                raise ImportError("call.cpp names the kinds of arguments otherwise; run `opwright build`")
            loaded.install(kind, vars(torch.compiler))
    except (Unavailable, Refused, OSError, ImportError):
        return  # doctor says why
    _module = loaded
