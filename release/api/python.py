"""The names that `import opwright` gives: functions, classes with their members, operators."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from opwright import Domain, Op, Options
from release.api.entries import Entry

MODULES = ("opwright", "opwright.nn", "opwright.tensors", "opwright.testing")
HANDED = (
    *("opwright.kit.check.report.Report", "opwright.kit.check.report.Result"),
    *("opwright.kit.check.judge.verdict.Judgement", "opwright.kit.check.judge.verdict.Verdict"),
    *("opwright.kit.explain.Step", "opwright.tensors.coverage.Row"),
)
"""What public functions hand out and nobody makes."""
BY_DOCUMENT = (Op, Domain, Options)
"""Classes whose members the toolkit calls as well: promised are those that a document for users names."""
SET = ("kernels", "name", "namespace", "qualname", "reference", "saving_form")
"""What an operator has of its own, beside the members of its class."""


def entries(root: Path) -> list[Entry]:
    """The names in `__all__` of the public modules."""
    found = [Entry("module", name) for name in MODULES]
    for name in MODULES:
        module = importlib.import_module(name)
        for public in module.__all__:
            found += _entries(f"{name}.{public}", getattr(module, public), root)
    for path in HANDED:
        place, _, name = path.rpartition(".")
        found += _entries(path, getattr(importlib.import_module(place), name), root)
    return found


def _entries(name: str, value: Any, root: Path) -> list[Entry]:
    if inspect.ismodule(value):
        return [Entry("module", name)]
    if isinstance(value, Op):
        return _operator(value)
    if isinstance(value, type):
        return [_class(name, value), *_members(name, value, root)]
    if inspect.isfunction(value):
        return [Entry("function", name, spelled(value))]
    if isinstance(value, tuple):
        return [Entry("constant", name, f" = {_default(value)}")]
    return [Entry("constant", name)]


def _operator(op: Op[..., Any]) -> list[Entry]:
    """An operator and those that come with it: saved graphs hold all of them by their names."""
    forms = [op, *([op.saving_form] if op.saving_form else []), *([op.backward] if op.has_rung else [])]
    return [Entry("operator", form.qualname, form.schema.removeprefix(form.name)) for form in forms]


def _class(name: str, cls: type) -> Entry:
    if cls is Op or name in HANDED:
        return Entry("class", name)
    ours = [c for c in cls.__mro__ if _ours(c)]
    for maker in ("__init__", "__new__"):
        for c in ours:
            if maker in vars(c):
                return Entry("class", name, spelled(vars(c)[maker], bound=True))
    base = next(c for c in cls.__mro__ if c not in ours)
    # What another package's class takes is its own affair, and differs from one of its versions to the next.
    return Entry("class", name, "" if base is object else f" as {base.__module__}.{base.__name__}")


def _ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "opwright"


def _members(name: str, cls: type, root: Path) -> list[Entry]:
    named = documented(root) if cls in BY_DOCUMENT else None
    fields = [f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    found: dict[str, Entry] = {}
    for c in filter(_ours, cls.__mro__):
        for member in [*vars(c), *getattr(c, "__annotations__", {}), *(SET if c is Op else ())]:
            public = not member.startswith("_") and (named is None or member in named or member in fields)
            if (public or member == "__call__") and member not in found:
                found[member] = _member(f"{name}.{member}", vars(c).get(member))
    return list(found.values())


def _member(name: str, value: Any) -> Entry:
    if isinstance(value, (property, cached_property)):
        return Entry("property", name)
    if isinstance(value, (staticmethod, classmethod)):
        return Entry("method", name, spelled(value.__func__, bound=isinstance(value, classmethod)))
    if inspect.isfunction(value):
        return Entry("method", name, spelled(value, bound=True))
    return Entry("attribute", name)


def documented(root: Path) -> set[str]:
    """The attributes (`op.NAME`) in the documents for users."""
    pages = [root / "README.md", *(p for p in sorted((root / "docs").glob("*.md")) if p.name != "architecture.md")]
    text = "\n".join(page.read_text(encoding="utf-8").replace("nn.functional", "") for page in pages)
    return set(re.findall(r"(?<!torch)\.([a-z]\w+)", text))


def spelled(function: Any, *, bound: bool = False) -> str:
    """A signature as its source spells the annotations, whatever the version of Python makes of them.

    >>> def load(path: str | None, /, *, deep: bool = False) -> list[int]: ...
    >>> spelled(load)
    '(path: str | None, /, *, deep: bool = False) -> list[int]'
    """
    parameters = list(inspect.signature(function).parameters.values())[1 if bound else 0 :]
    parameters = [p for p in parameters if not p.name.startswith("_")]
    parts: list[str] = []
    for before, p in zip([None, *parameters], parameters, strict=False):
        if before is not None and before.kind is p.POSITIONAL_ONLY and p.kind is not p.POSITIONAL_ONLY:
            parts.append("/")
        if p.kind is p.KEYWORD_ONLY and (before is None or before.kind not in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)):
            parts.append("*")
        stars = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        annotation = f": {p.annotation}" if isinstance(p.annotation, str) else ""
        equals = " = " if annotation else "="
        default = "" if p.default is p.empty else f"{equals}{_default(p.default)}"
        parts.append(f"{stars}{p.name}{annotation}{default}")
    if parameters and parameters[-1].kind is inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    returns = inspect.signature(function).return_annotation
    made = function.__name__ in ("__init__", "__new__")
    return f"({', '.join(parts)})" + (f" -> {returns}" if isinstance(returns, str) and not made else "")


def _default(value: Any) -> str:
    """A default as one would write it; `...` for objects that have no such form."""
    if isinstance(value, tuple):
        inner = ", ".join(map(_default, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, type):
        return value.__name__
    plain = value is None or isinstance(value, (bool, int, float, complex, str, torch.dtype))
    return repr(value) if plain else "..."
