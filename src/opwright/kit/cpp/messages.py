"""What a library says of its operators to a process where no Python has defined them.

native/alone.cpp reads it: messages of words, each with a verb and the operator that it is about. Everything in them is
what Python says of the same operators, but for the ways back, of which there are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

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
    """Definitions first: what follows names operators."""
    there = served(operators, keys)
    for op in there:
        for kernel in _kernels(op, keys):
            overload = _overload(kernel, keys)
            schema = op.signature.schema(f"{op.name}.{overload}", hidden=f"_{overload}")
            yield "hidden", f"{op.qualname}.{overload}", schema
    for op in there:
        yield "define", op.qualname, op.schema, *_tags(op)
    for op in there:
        for device in dict.fromkeys(kernel.device for kernel in _kernels(op, keys)):
            yield "install", op.qualname, *wire.words(_routing(op, device, keys))
    for op in there:
        yield "record", op.qualname, *wire.words(_recorded(op, there))


def _kernels(op: Op[..., Any], keys: Mapping[Library, str]) -> list[Kernel]:
    return [kernel for kernel in op.kernels if kernel.library in keys]


def _overload(kernel: Kernel, keys: Mapping[Library, str]) -> str:
    assert kernel.library is not None
    return f"{kernel.device}_{keys[kernel.library]}"


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
