"""Values, taken apart: how each is spelled, alike in every process, and what it holds."""

from __future__ import annotations

import copyreg
import ctypes
import enum
import functools
import hashlib
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.spec import names

Parts = list[tuple[str, Any]]
"""What a value holds: `.name` for an attribute, `[key]` for an item, a word for the rest."""

_PLAIN = {bool, int, float, complex, str, bytes, type(None), type(Ellipsis)}
_SPELLED_BY_VALUE = _PLAIN | {tuple, frozenset, types.CodeType, slice, range}
_BYTES = 1 << 24
"""Arrays beyond this are not read."""
_TENSOR_BYTES = 1 << 20
_INERT = (type(threading.Lock()), type(threading.RLock()), torch.Generator)


class Unspellable(Exception):
    """The value cannot be told from others by another process."""


def has_identity(value: Any) -> bool:
    """Whether it matters that two names lead to one such object. Of constants Python may make one or several."""
    return type(value) not in _SPELLED_BY_VALUE


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a text or the like, or a container of nothing else: a list of a million numbers."""
    kind = type(value)
    if kind is dict:
        return set(map(type, value)) | set(map(type, value.values())) <= _PLAIN
    return kind in _PLAIN or (kind in (list, tuple, set, frozenset) and set(map(type, value)) <= _PLAIN)


class Operator:
    """What every operator is one of: a value with a definition."""


def is_operator(value: Any) -> bool:
    """Whether it is an operator of ours."""
    return isinstance(value, Operator)


def look(value: Any) -> tuple[str, Parts]:
    """How a value is spelled, and its parts; raises Unspellable.

    >>> look([1, 2]), look({"a": [1, 2], "b": 3})
    (('list [1, 2]', []), ('dict 2', [("['a']", [1, 2]), ("['b']", 3)]))
    """
    kind = type(value)
    if kind in _PLAIN:
        return f"{kind.__name__} {value!r}", []
    if kind in (list, tuple, dict, set, frozenset):
        return _container(value)
    for kinds, read in _READERS:
        if isinstance(value, kinds):
            return read(value)
    if is_operator(value):
        return f"operator {value.qualname}", [("definition", value.definition)]
    if isinstance(value, type):
        return _class(value)
    return _buffer(value) or _instance(value)


def _container(value: Any) -> tuple[str, Parts]:
    kind = type(value).__name__
    if is_plain(value):
        return f"{kind} {sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else value!r}", []
    if isinstance(value, (set, frozenset)):
        order = sorted((look(each)[0], i) for i, each in enumerate(value))
        if len({spelled for spelled, _ in order}) < len(value):
            raise Unspellable  # nothing says which comes first
        elements = list(value)
        return f"{kind} {len(value)}", [("[]", elements[i]) for _, i in order]
    return f"{kind} {len(value)}", _items(value)


def _items(value: Any) -> Parts:
    """What stands in a list, a tuple or a dictionary."""
    if not isinstance(value, dict):
        return [(f"[{i}]", each) for i, each in enumerate(list(value))]
    parts: Parts = []
    for key, each in list(dict.items(value)):
        plain = type(key) in _PLAIN
        parts += [(f"[{key!r}]", each)] if plain else [("key", key), ("[…]", each)]
    return parts


def _function(function: types.FunctionType) -> tuple[str, Parts]:
    if names.foreign_function(function):  # its maker may have given it a function of somebody else's
        held = [*names.closed_over(function), *names.defaults(function)]
        where = f"{function.__globals__['__name__']}.{function.__qualname__} {function.__code__.co_firstlineno}"
        return f"function {where}", held
    own = [(f".{name}", each) for name, each in sorted(vars(function).items())]
    return f"function {function.__name__}", [("code", function.__code__), *names.named(function), *own]


def _code(code: types.CodeType) -> tuple[str, Parts]:
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    words = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    ways = getattr(code, "co_exceptiontable", b"")
    return f"code {code.co_code.hex()} {ways.hex()} {words} {counts}", [("constants", code.co_consts)]


def _tensor(t: Tensor) -> tuple[str, Parts]:
    """A small one by its values. Those of others are in no graph, which reads them when it runs."""
    spelled = f"tensor {type(t).__name__} {t.dtype} {t.device} {t.layout} {tuple(t.shape)} {t.requires_grad}"
    if type(t) not in (Tensor, torch.nn.Parameter) or t.device.type != "cpu" or t.layout != torch.strided:
        return spelled, []
    try:
        storage = t.untyped_storage()
        if not 0 < storage.nbytes() <= _TENSOR_BYTES:
            return spelled, []
        # No operator of PyTorch's: a tracer may be active.
        values = hashlib.sha256(ctypes.string_at(storage.data_ptr(), storage.nbytes())).hexdigest()
    except (RuntimeError, NotImplementedError):  # a tensor of torch.func's
        return spelled, []
    return f"{spelled} {t.stride()} {t.storage_offset()} {t.is_conj()} {t.is_neg()} {values}", []


def _module(module: types.ModuleType) -> tuple[str, Parts]:
    if not names.foreign(module.__name__):
        raise Unspellable  # kept in an object: nothing says what of it is used
    return f"module {module.__name__}", []


def _enum(member: enum.Enum) -> tuple[str, Parts]:
    return f"member {type(member).__qualname__}.{member.name}", [("value", member.value), ("class", type(member))]


def _property(value: property) -> tuple[str, Parts]:
    return "property", [("get", value.fget), ("set", value.fset), ("del", value.fdel)]


def _unknown(value: Any) -> tuple[str, Parts]:
    raise Unspellable


def _name(value: Any) -> tuple[str, Parts]:
    return f"{type(value).__name__} {getattr(value, '__name__', '')}", []


_READERS: list[tuple[Any, Callable[[Any], tuple[str, Parts]]]] = [
    (types.FunctionType, _function),
    (types.CodeType, _code),
    (Tensor, _tensor),
    (types.ModuleType, _module),
    (enum.Enum, _enum),
    (property, _property),
    (names.Unknown, _unknown),
    ((torch.dtype, torch.layout, torch.memory_format, torch.device), lambda value: (f"torch {value!r}", [])),
    (types.MethodType, lambda m: ("method", [("function", m.__func__), ("self", m.__self__)])),
    ((classmethod, staticmethod), lambda m: (type(m).__name__, [("function", m.__func__)])),
    (functools._lru_cache_wrapper, lambda f: ("cached", [("function", f.__wrapped__), ("how", f.cache_parameters())])),
    (functools.partial, lambda p: ("partial", [("function", p.func), ("args", p.args), ("kwargs", p.keywords)])),
    (types.MappingProxyType, lambda m: ("mapping", [("items", dict(m))])),
    (weakref.ref, lambda r: ("weak", [("to", r())])),
    ((private.OpOverload, private.OpOverloadPacket), lambda op: (f"operator {op}", [])),
    ((types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType), _name),
    (_INERT, _name),
]


def _class(kind: type) -> tuple[str, Parts]:
    """A class by what it says and what its bases say."""
    if names.foreign(kind.__module__):
        return f"class {kind.__module__}.{kind.__qualname__}", []
    said = [(f".{name}", each) for name, each in sorted(vars(kind).items()) if _counts(name, each)]
    return f"class {kind.__qualname__}", [*said, *(("base", base) for base in (*kind.__bases__, type(kind)))]


def _counts(name: str, value: Any) -> bool:
    if name == "_abc_impl":  # what Python keeps about abstract classes
        return False
    return not name.startswith("__") or isinstance(value, (types.FunctionType, classmethod, staticmethod, property))


def _buffer(value: Any) -> tuple[str, Parts] | None:
    """An array, NumPy's or another's, by its bytes."""
    kind = type(value)
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):
        return None
    if "O" in view.format or not names.foreign(kind.__module__):  # addresses, or an array and more
        return None
    if view.nbytes > _BYTES:
        raise Unspellable
    content = hashlib.sha256(view.tobytes()).hexdigest()
    return f"{kind.__module__}.{kind.__qualname__} {view.format} {view.shape} {content}", []


def _instance(value: Any) -> tuple[str, Parts]:
    """An object by its class and attributes; where others wrote the class, by what pickle would keep of it."""
    kind = type(value)
    others = names.foreign(kind.__module__)
    parts: Parts = [("class", kind)]
    if not others:
        parts += _own_attributes(value)
    if isinstance(value, (list, tuple, dict)):
        parts += _items(value)
    if others or any(names.foreign(base.__module__) for base in kind.__mro__[1:-1]):
        parts += _reduced(value)
    return f"object {kind.__module__ if others else ''}.{kind.__qualname__}", parts


def _own_attributes(value: Any) -> Iterator[tuple[str, Any]]:
    for name, each in sorted(getattr(value, "__dict__", {}).items()):
        yield f".{name}", each
    for base in type(value).__mro__:
        for name, slot in sorted(vars(base).items()):
            if isinstance(slot, types.MemberDescriptorType) and not names.foreign(base.__module__):
                try:
                    yield f".{name}", slot.__get__(value)
                except AttributeError:  # not set
                    continue


def _reduced(value: Any) -> Parts:
    reduce = copyreg.dispatch_table.get(type(value))
    reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)  # TypeError where it hides what it holds
    if isinstance(reduced, str):
        home = getattr(value, "__module__", None)
        known = names.foreign(home) or any(
            getattr(sys.modules.get(place), reduced, None) is value for place in ("torch", "numpy")
        )
        if not known:
            raise Unspellable  # a name, and nothing says what is behind it
        return [("name", f"{home}.{reduced}")]
    make, args, state, *rest = (*reduced, None, None, None)[:5]
    parts: Parts = [("made by", make), ("of", args)]
    states = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    for each in states:
        attributes = isinstance(each, dict) and all(isinstance(key, str) for key in each)
        parts += [(f".{name}", held) for name, held in sorted(each.items())] if attributes else [("state", each)]
    return parts + [("items", list(items)) for items in rest if items is not None]
