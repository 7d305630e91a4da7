"""What a function names beside its parameters: the values it closes over and the globals it reads."""

from __future__ import annotations

import builtins
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


def named(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """The values that a function names, its helpers' too: closures, globals, defaults, attributes of modules."""
    return _walk(function, set())


def digest(*parts: Any) -> str:
    """A hash of functions and plain values that is the same in every process: of what they do and name, not of where
    they stand.

    >>> one, two = eval("lambda x: x + 1"), eval("lambda y: y + 1")
    >>> digest(one) == digest(eval("lambda x: x + 1")), digest(one) == digest(two), digest(1) == digest(1.0)
    (True, False, False)
    """
    return hashlib.sha256("\n".join(_spell(parts, set())).encode()).hexdigest()[:16]


def _walk(value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    function = _function(value)
    if function is None or id(function) in seen or _foreign(function):
        return
    seen.add(id(function))
    for name, found in _named(function):
        yield name, found
        yield from _walk(found, seen)


def _function(value: Any) -> types.FunctionType | None:
    """The plain function in a value: itself, what a decorator or a partial wraps, a bound method's."""
    while isinstance(value, functools.partial):
        value = value.func
    value = getattr(value, "__func__", value)
    return value if isinstance(value, types.FunctionType) else None


_OUTSIDE = {"torch", "numpy", "opwright", "builtins", *sys.stdlib_module_names} - {"__main__"}


def _foreign(value: Any) -> bool:
    """Whether a function or class belongs to PyTorch, Python or opwright, whose versions say what it does."""
    module = str(getattr(value, "__module__", None) or "")
    return module.partition(".")[0] in _OUTSIDE and not module.startswith("opwright.ops.")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _named(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function names, with the name: in its closure, its globals, its defaults."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for i, value in enumerate(function.__defaults__ or ()):
        yield f"default {i}", value
    yield from (function.__kwdefaults__ or {}).items()
    names = sorted({name for code in _codes(function.__code__) for name in code.co_names})
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] not in _OUTSIDE:
            # `helpers.scale`: the attribute's name stands among the others.
            for attribute in names:
                if attribute in vars(value):
                    yield f"{name}.{attribute}", vars(value)[attribute]


def _spell(value: Any, seen: set[int]) -> Iterator[str]:
    """A value in lines that every process writes alike."""
    function = _function(value)
    if isinstance(value, (list, dict)):
        if id(value) in seen:
            yield "again"
            return
        seen.add(id(value))
    if isinstance(value, (list, tuple)):
        yield f"{type(value).__name__} {len(value)}"
        for each in value:
            yield from _spell(each, seen)
    elif isinstance(value, dict):
        yield f"dict {len(value)}"
        for key, each in sorted(value.items(), key=lambda item: repr(item[0])):
            yield repr(key)
            yield from _spell(each, seen)
    elif isinstance(value, (set, frozenset)):
        yield f"set {sorted(map(repr, value))}"
    elif isinstance(value, enum.Enum):
        yield f"{type(value).__name__}.{value.name} {value.value!r}"
    elif isinstance(value, (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        yield str(value)
    elif isinstance(value, Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)} {value.requires_grad}"
    elif isinstance(value, types.CodeType):
        yield from _spell_code(value, seen)
    elif isinstance(value, types.ModuleType):
        yield f"module {value.__name__}"
    elif hasattr(value, "definition"):  # an operator
        yield f"operator {value.qualname}"
        if id(value) not in seen:
            seen.add(id(value))
            yield from _spell(value.definition, seen)
    elif function is not None:
        yield from _spell_function(value, function, seen)
    elif isinstance(value, type):
        yield from _spell_class(value, seen)
    else:
        yield f"{type(value).__module__}.{type(value).__qualname__}"
        if id(value) not in seen and not _foreign(type(value)):
            seen.add(id(value))
            yield from _spell_class(type(value), seen)
            yield from _spell(getattr(value, "__dict__", None), seen)


def _spell_code(code: types.CodeType, seen: set[int]) -> Iterator[str]:
    yield f"code {code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars} {code.co_flags}"
    yield from _spell(code.co_consts, seen)


def _spell_function(value: Any, function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    yield f"function {function.__name__}"
    while isinstance(value, functools.partial):
        yield from _spell((value.args, value.keywords), seen)
        value = value.func
    if id(function) in seen or _foreign(function):
        yield f"{function.__module__}.{function.__qualname__}" if _foreign(function) else "again"
        return
    seen.add(id(function))
    yield from _spell_code(function.__code__, seen)
    for name, each in _named(function):
        if name not in vars(builtins):
            yield f"names {name}"
            yield from _spell(each, seen)


def _spell_class(kind: type, seen: set[int]) -> Iterator[str]:
    yield f"class {kind.__qualname__}"
    if id(kind) in seen or _foreign(kind):
        return
    seen.add(id(kind))
    for name, each in sorted(vars(kind).items()):
        if not name.startswith("__") or _function(each) is not None:
            yield name
            yield from _spell(each, seen)
