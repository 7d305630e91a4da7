"""What a library says of its operators to a process where no Python has defined them.

native/alone.cpp reads it: messages of words, each with a verb, and all but the first and the last with the operator
that it is about. Everything in them is
what Python says of the same operators, but for the ways back, of which there are none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from opwright.kit.build import toolchain
from opwright.kit.build.library import Library
from opwright.kit.dispatch import native, node, wire
from opwright.kit.dispatch.kernel import Kernel
from opwright.kit.op import Op

WORD, MESSAGE = "\x1f", "\x1e"
"""What ends a word, and what ends a message."""

Message = tuple[str, ...]


def text(operators: Sequence[Op[..., Any]], keys: Mapping[Library, str]) -> str:
    """All that is said of these operators; `keys`: by which key each of their libraries binds its kernels."""
    return "".join(WORD.join(message) + MESSAGE for message in messages(operators, keys))


def served(operators: Iterable[Op[..., Any]], keys: Mapping[Library, str]) -> list[Op[..., Any]]:
    """Those that have a kernel in one of the libraries: they, and their gradients and forms that save."""
    every = dict.fromkeys(rung for op in operators for rung in op.ladder)
    return [op for op in every if _kernels(op, keys)]


def messages(operators: Sequence[Op[..., Any]], keys: Mapping[Library, str]) -> Iterator[Message]:
    """Definitions first, since what follows names operators; and an operator before the overloads that kernels are
    bound to, since a call by the operator's name takes the first overload that fits."""
    there = served(operators, keys)
    yield "wire", wire.describe()
    for op in there:
        yield "define", op.qualname, op.schema, *_tags(op)
    for op in there:
        yield "made", op.qualname, _made_of(op, keys)
    for op in there:
        for kernel in _kernels(op, keys):
            overload = _overload(kernel, keys)
            schema = op.signature.schema(f"{op.name}.{overload}", hidden=f"_{overload}")
            yield "hidden", f"{op.qualname}.{overload}", schema
    for op in there:
        for device in dict.fromkeys(kernel.device for kernel in _kernels(op, keys)):
            yield "install", op.qualname, *wire.words(_routing(op, device, keys))
    for op in there:
        yield "record", op.qualname, *wire.words(_recorded(op, there))
    yield ("end",)


def _kernels(op: Op[..., Any], keys: Mapping[Library, str]) -> list[Kernel]:
    return [kernel for kernel in op.kernels if kernel.library in keys]


def _overload(kernel: Kernel, keys: Mapping[Library, str]) -> str:
    assert kernel.library is not None
    return f"{kernel.device}_{keys[kernel.library]}"


def bound(operators: Iterable[Op[..., Any]], library: Library, keys: Mapping[Library, str]) -> str:
    """An overload that a library binds a kernel to: a process that has it has the library."""
    rungs = (rung for op in operators for rung in op.ladder)
    found = ((rung, kernel) for rung in rungs for kernel in rung.kernels if kernel.library is library)
    return next(f"{rung.qualname}.{_overload(kernel, keys)}" for rung, kernel in found)


def _made_of(op: Op[..., Any], keys: Mapping[Library, str]) -> str:
    """The digest of the sources of an operator's kernels, however they were compiled."""
    made = hashlib.sha256()
    for library in dict.fromkeys(kernel.library for kernel in _kernels(op, keys)):
        assert library is not None
        plan = library.plan()
        for file in (*plan.sources, *plan.headers):
            if file.is_file() and not file.is_relative_to(toolchain.INCLUDE):
                made.update(file.read_bytes())
    return made.hexdigest()


def _tags(op: Op[..., Any]) -> list[str]:
    tags = {torch.Tag.pt2_compliant_tag, *op.spec.tags, *([torch.Tag.nondeterministic_seeded] if op.random else [])}
    return sorted(tag.name for tag in tags)


def _routing(op: Op[..., Any], device: str, keys: Mapping[Library, str]) -> wire.Routing:
    routes = tuple(
        native.describe(op, kernel.domain, f"{op.qualname}.{_overload(kernel, keys)}")
        for kernel in _kernels(op, keys)
        if kernel.device == device
    )
    return wire.Routing(op.qualname, device.upper(), node.NOWHERE, node.NOWHERE, routes)


def _recorded(op: Op[..., Any], there: Sequence[Op[..., Any]]) -> wire.Recorded:
    above = node.gradient_of(op)
    recorded = node.describe(op, above)
    if above is not None and (above not in there or node.recorded_form(op) not in there):
        lacking = above.name if above not in there else node.recorded_form(op).name
        why = f"{op.name}: its gradient needs {lacking}, which has no kernel, and its reference is in Python"
        return recorded._replace(form=op.qualname, gradient=None, missing=why, sources=())
    return recorded
