"""C++ names as a reader knows them."""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache
from typing import Any


def readable(symbol: str) -> str:
    """A symbol's name in the words of C++, without its parameters; as it is where it is none of C++.

    >>> readable("_ZN3c108GradMode10is_enabledEv"), readable("memcpy")
    ('c10::GradMode::is_enabled', 'memcpy')
    """
    runtime = _runtime() if symbol.startswith("_Z") else None
    if runtime is None:
        return symbol
    status = ctypes.c_int()
    text = runtime.__cxa_demangle(symbol.encode(), None, None, ctypes.byref(status))
    try:
        return symbol if status.value or not text else _short(ctypes.string_at(text).decode(errors="replace"))
    finally:
        runtime.free(ctypes.c_void_p(text))


def _short(name: str) -> str:
    """Without parameters and the arguments of templates, which fill lines and tell nothing here."""
    name, before = name.replace("(anonymous namespace)", "{anonymous}"), ""
    while name != before:
        name, before = re.sub(r"<[^<>]*>", "", name), name
    return re.sub(r"(?<!operator)\(.*", "", name)


@lru_cache
def _runtime() -> Any:
    """The C++ runtime that PyTorch has loaded; None where it is another than GCC's."""
    try:
        runtime = ctypes.CDLL("libstdc++.so.6")
        runtime.__cxa_demangle.restype = ctypes.c_void_p
        runtime.free.restype = None
    except (OSError, AttributeError):
        return None
    return runtime
