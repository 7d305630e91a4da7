"""What extensions have registered in this process, where PyTorch keeps it until the process ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
from typing import Any

from opwright.kit import private
from opwright.kit.build import cache, program
from opwright.kit.build.plan import Plan
from opwright.kit.build.trouble import BuildError

_LIBRARY = re.compile(r"\b(?:STABLE_)?TORCH_LIBRARY(_FRAGMENT)?\s*\(\s*(\w+)\s*,")
_DEFINED = re.compile(r"\bdef\s*\(\s*\"(?:\w+::)?(\w+)[(.\"]")

_opened: set[str] = set()
"""The keys of what was loaded: what they register is their own."""
_types: dict[str, str] = {}
"""The classes of C++ that PyTorch knows, as compilers write them, and the extension that each is of."""


def refuse_named(plan: Plan) -> None:
    """Raise before anything is built where the sources can be seen to register what this process has."""
    if plan.key in _opened:
        return
    here: set[str] | None = None
    for file in (*plan.sources, *plan.headers):
        text = file.read_text(encoding="utf-8", errors="replace")
        for fragment, word in _LIBRARY.findall(text):
            space = plan.name if word == "TORCH_EXTENSION_NAME" else word
            names = [f"{space}::{op}" for op in _DEFINED.findall(text)]
            here = _here() if here is None else here
            taken = [op for op in here if op.startswith(f"{space}::") and (not fragment or op in names)]
            if taken:
                raise _twice(plan.name, f"{file.name} registers {sorted(taken)[0]}", space)


def opening(name: str, entry: cache.Entry) -> None:
    """Raise before a library is loaded that registers what this process has: PyTorch would end it, or take one class
    for the other."""
    if entry.about["key"] not in _opened:
        _refuse(name, entry.about.get("registers", {}))


def opened(name: str, entry: cache.Entry) -> None:
    """A library was loaded, or that was tried."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(str(entry.library), mode=os.RTLD_NOLOAD)
        _opened.add(entry.about["key"])
        _types.update(dict.fromkeys(entry.about.get("registers", {}).get("types", ()), name))


def _refuse(name: str, found: dict[str, Any]) -> None:
    for kind in found.get("classes", ()):
        space, _, word = kind.rpartition(".")
        if private.class_in_cpp(space, word) is not None:
            raise BuildError(
                f"{name}: its class {word} stands in another version of it that this process has loaded, which PyTorch "
                f"keeps until the process ends; start again, or choose another name, and an unnamed namespace for it"
            )
    for kind in found.get("types", ()):
        if kind in _types:
            word = _written(kind)
            raise BuildError(
                f"{name}: its class {word} has the name in C++ of a class of {_types[kind]}, which this process has "
                f"loaded, and PyTorch would take one for the other; put it into an unnamed namespace, "
                f"`namespace {{ struct {word.rpartition('::')[2]} … }}`, or start again"
            )
    here = _here()
    for op in found.get("operators", ()):
        if op in here:
            raise _twice(name, f"it registers {op}", op.partition("::")[0])
    for space in found.get("namespaces", ()):
        if private.is_taken(space):
            raise _twice(name, f"it registers the namespace {space} by TORCH_LIBRARY", space)


def _here() -> set[str]:
    return {schema.partition(".")[0] for schema in private.operator_names()}


def _twice(name: str, what: str, space: str) -> BuildError:
    return BuildError(
        f"{name}: {what}, which this process has already, and PyTorch keeps what is registered until the process ends; "
        f"start again, or choose another namespace than {space}"
    )


def _written(kind: str) -> str:
    """A type's name as its author writes it."""
    reader = shutil.which("c++filt")
    return kind if reader is None else program.run([reader, "-t", kind]).stdout.strip() or kind
