"""What a function captures beside its parameters, looked up and hashed: its helpers, constants and settings."""

from __future__ import annotations

import hashlib
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from opwright.kit.spec import held, names

_LIMIT = 50_000
"""How many objects are looked at before a function counts as too entangled."""


def named(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """The values that a function names, its helpers' too, and what these hold; of attributes, those whose name stands
    in the code."""
    used: set[str] = set()
    while True:
        left_out: set[str] = set()
        found = list(_walk(function, used, left_out))
        if not left_out & used:
            return found


def digest(*parts: Any) -> str:
    """A hash of functions and values that is the same in every process: of what they do and name, not of where they
    stand. What cannot be spelled makes it one of a kind: whoever asks a cache with it must not find anything.

    >>> one, two = eval("lambda x: x + 1", {}), eval("lambda y: y + 1", {})
    >>> digest(one) == digest(eval("lambda x: x + 1", {})), digest(one) == digest(two), digest(1) == digest(1.0)
    (True, False, False)
    >>> running = (i for i in [1])
    >>> digest(running) == digest(running)
    False
    """
    whole = hashlib.sha256()
    for line in _spell(parts):
        whole.update(line.encode(errors="backslashreplace") + b"\n")
    return whole.hexdigest()[:16]


def _spell(value: Any) -> Iterator[str]:
    """A value in lines that every process writes alike."""
    seen: dict[int, int] = {}
    alive: list[Any] = []  # an id says nothing of an object that is gone
    left = [("", value)]
    while left:
        label, value = left.pop()
        yield label
        if id(value) in seen:
            yield f"again {seen[id(value)]}"
            continue
        if held.has_identity(value):
            seen[id(value)] = len(seen)
        alive.append(value)
        try:
            spelled, parts = held.look(value)
        except Exception:  # whatever somebody's object does when it is asked
            spelled, parts = f"unspellable {os.urandom(16).hex()}", []
        yield f"{spelled} {len(parts)}"
        left += reversed(parts)
        if len(alive) > _LIMIT:
            yield f"too much {os.urandom(16).hex()}"
            return


def _walk(value: Any, used: set[str], left_out: set[str]) -> Iterator[tuple[str, Any]]:
    """The values that a function names, each once, with the words that lead to it from the function that names it."""
    alive: dict[int, Any] = {}
    left = [("", value)]
    while left and len(alive) < _LIMIT:
        path, value = left.pop()
        if id(value) in alive:
            continue
        alive[id(value)] = value
        if path:
            yield path, value
        is_function = isinstance(value, types.FunctionType)
        if is_function and not names.foreign_function(value):
            used |= names.words(value)
        for label, part in reversed(_parts(value)):
            word = label[1:] if label.startswith(".") else "__"
            special = word.startswith("__") and word != "__init__"  # what that sets is not what anybody reads
            if word not in used and not special:
                left_out.add(word)
            elif label.startswith((".", "[")):
                left.append((path + label, part))
            else:
                left.append((label if is_function else path, part))


def _parts(value: Any) -> held.Parts:
    if isinstance(value, (Tensor, types.CodeType)) or held.is_plain(value):
        return []
    if held.is_operator(value):
        return [("reference", value.reference)]
    try:
        return held.look(value)[1]
    except Exception:
        return []
