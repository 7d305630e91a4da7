"""The sources of an operator: its reference, and each kernel beside it."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.kit.op import Op


@dataclass(frozen=True)
class Source:
    """A piece of source, and what it is."""

    title: str
    text: str


def sources(op: Op[..., Any]) -> list[Source]:
    """The reference first, then its declared gradient, then the kernels of it and its rungs, each file once."""
    found = [Source("reference, Python", _text(op.reference))]
    if op.spec.formula is not None:
        found.append(Source("gradient, Python", _text(op.spec.formula.function)))
    seen: set[Path] = set()
    for rung in op.ladder:
        for kernel in rung.kernels:
            if kernel.library is None:
                found.append(Source(f"{kernel.name}, Python for {kernel.device}", _text(kernel._function)))
                continue
            file = Path(kernel.library.file)
            if file not in seen:
                seen.add(file)
                found.append(Source(f"{file.name}, for {kernel.device}", _read(file)))
    return found


def _text(function: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(inspect.unwrap(function))).strip()
    except (OSError, TypeError):
        return "(its source is not at hand)"


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return "(its source is not at hand)"
