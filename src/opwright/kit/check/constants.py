"""The numbers that stand in the source of an operator's kernels: where a branch is likely to turn."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.kit.build.library import Library
from opwright.kit.op import Op

_IGNORED = re.compile(rb'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^[ \t]*#[ \t]*include[^\n]*', re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(
    rb"(?<![\w.])(?:(0[xX][0-9a-fA-F']+)|(\d[\d']*\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?))[uUlLfFzZ]*(?![\w.])"
)
_SHIFT = re.compile(rb"(?<![\w.])(\d+)[uUlL]*\)?\s*<<\s*(\d+)(?![\w.])")
MOST = 64
"""Numbers of a kind that are looked at: a table of coefficients has no branches."""


@dataclass(frozen=True)
class Constants:
    """The numbers of a source, positive, each once: whole ones and others."""

    whole: tuple[int, ...] = ()
    real: tuple[float, ...] = ()


def constants_of(op: Op[..., Any], device: str) -> Constants:
    """The numbers in the sources of an operator's kernels for a device, and in headers beside them."""
    found: list[int | float] = []
    for kernel in op.kernels:
        if kernel.device != device:
            continue
        if kernel.library is not None:
            found += [number for file in written_in(kernel.library) for number in _read(file)]
        elif kernel.spec.function is not None:
            found += _in_code(kernel.spec.function)
    return sorted_out(found)


def written_in(library: Library) -> list[Path]:
    """The files that a library's author wrote: its sources, and the headers that they include; not opwright's own."""
    plan = library.plan()
    return [*plan.sources, *(h for h in plan.headers if _PACKAGE not in h.parents)]


_PACKAGE = Path(__file__).resolve().parents[2] / "include"


def in_source(text: bytes) -> list[int | float]:
    """The numbers of a C++ source, without those of comments, texts and names.

    >>> in_source(b'if (n > 4096 && x < 1e-6f) v[2] = 1 << 20;  // 17')
    [4096, 1e-06, 2, 1, 20, 1048576]
    """
    text = _IGNORED.sub(b" ", text)
    found: list[int | float] = []
    for hexadecimal, decimal in _NUMBER.findall(text):
        if hexadecimal:
            found.append(int(hexadecimal.replace(b"'", b""), 16))
            continue
        digits = decimal.replace(b"'", b"").decode()
        found.append(int(digits) if digits.isdecimal() else float(digits))
    return found + [int(a) << int(b) for a, b in _SHIFT.findall(text) if int(b) < 63]


def _read(file: Path) -> list[int | float]:
    try:
        return in_source(file.read_bytes())
    except OSError:
        return []


def _in_code(function: Callable[..., Any]) -> list[int | float]:
    """The numbers of a kernel in Python, and of the functions inside it."""
    code = getattr(getattr(function, "fn", function), "__code__", None)  # a Triton kernel keeps its function so
    found: list[int | float] = []
    waiting = [code] if code is not None else []
    while waiting:
        for value in waiting.pop().co_consts:
            if hasattr(value, "co_consts"):
                waiting.append(value)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                found.append(value)
    return found


def sorted_out(found: Iterable[int | float]) -> Constants:
    """Numbers by their kinds, each once."""
    whole = sorted({n for n in found if isinstance(n, int) and n > 0})
    real = sorted({abs(x) for x in found if isinstance(x, float) and x and math.isfinite(x)})
    return Constants(tuple(whole[:MOST]), tuple(real[:MOST]))
