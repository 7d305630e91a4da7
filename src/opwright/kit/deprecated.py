"""Names on their way out. Each stands in one table with the version since which it warns, the one in which it is gone,
and what to write instead; whatever serves the old name refers to its line there.

    DEPRECATED = (
        Deprecation("opwright.measure", since="0.3", gone="0.4", instead="opwright.bench"),
        Deprecation("opwright.check(start=)", since="0.3", gone="0.4", instead="seed="),
    )

    @deprecated.function("opwright.measure")
    def measure(…): …

    @deprecated.parameter("opwright.check(start=)", to="seed")
    def check(…, *, seed=0): …

A deprecated name works for a minor release at least. Once the version reaches `gone`, a test fails until name and line
are taken out.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
Kind = Literal["name", "parameter", "option", "variable"]

_PACKAGE = str(Path(__file__).parent.parent) + os.sep


@dataclass(frozen=True)
class Deprecation:
    """One old name. `what` spells it as users do: `opwright.measure`, `opwright.check(start=)`, `opwright.Op.rungs`,
    `opwright bench --fast`, `OPWRIGHT_FAST`.

    >>> print(Deprecation("opwright.check(start=)", since="0.3", gone="0.4", instead="seed="))
    opwright.check(start=) is deprecated since 0.3 and gone in 0.4; write seed= instead
    """

    what: str
    since: str
    gone: str
    instead: str = ""

    def __post_init__(self) -> None:
        for version in (self.since, self.gone):
            if not re.fullmatch(r"\d+\.\d+", version):
                raise ValueError(f"{self.what}: a deprecation names versions such as 0.3, got {version!r}")
        if release(self.gone) <= release(self.since):
            raise ValueError(
                f"{self.what}: deprecated since {self.since}, it must be there for that minor release at least, so it "
                f"is gone in a later one, got {self.gone}"
            )
        (major, _), (last, minor) = release(self.since), release(self.gone)
        if major >= 1 and (last == major or minor != 0):
            raise ValueError(
                f"{self.what}: from 1.0 on names go in a major version, such as {major + 1}.0, not {self.gone}"
            )

    @property
    def kind(self) -> Kind:
        """What sort of name it is, by its spelling."""
        if self.what.endswith("=)"):
            return "parameter"
        return "option" if " " in self.what else "variable" if self.what.startswith("OPWRIGHT_") else "name"

    def overdue(self, version: str) -> bool:
        """Whether it should be gone from this version.

        >>> [Deprecation("opwright.measure", "0.3", "0.4").overdue(v) for v in ("0.3.2", "0.4.0.dev1", "0.10.0")]
        [False, True, True]
        """
        return release(version) >= release(self.gone)

    def __str__(self) -> str:
        how = f"; write {self.instead} instead" if self.instead else "; leave it out"
        return f"{self.what} is deprecated since {self.since} and gone in {self.gone}{how}"


DEPRECATED: tuple[Deprecation, ...] = ()
"""All that is deprecated now."""


def release(version: str) -> tuple[int, int]:
    """Major and minor of a version."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def find(what: str) -> Deprecation:
    """Its line in the table."""
    for line in DEPRECATED:
        if line.what == what:
            return line
    raise LookupError(f"{what} is not in DEPRECATED in {__name__}: add it there, or take out what still serves it")


def function(what: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: the function or method warns when it is called; below `@property`, when it is read."""
    line = find(what)

    def decorate(old: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(old)
        def warned(*args: P.args, **kwargs: P.kwargs) -> R:
            _warn(line)
            return old(*args, **kwargs)

        warned.__deprecated__ = str(line)  # type: ignore[attr-defined]  # the attribute of warnings.deprecated
        return warned

    return decorate


def parameter(what: str, *, to: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: the keyword that `what` names is still taken, and warns. Its value goes to the parameter `to`, or
    nowhere when that is None."""
    line = find(what)
    name = what.rpartition("(")[2].removesuffix("=)")

    def decorate(new: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(new)
        def warned(*args: P.args, **kwargs: P.kwargs) -> R:
            if name in kwargs:
                if to in kwargs:
                    raise TypeError(f"{new.__name__}: {name} is the old name of {to}; give {to} alone")
                _warn(line)
                value = kwargs.pop(name)
                if to is not None:
                    kwargs[to] = value
            return new(*args, **kwargs)

        former = getattr(new, "__deprecated_parameters__", ())
        warned.__deprecated_parameters__ = (*former, name)  # type: ignore[attr-defined]
        return warned

    return decorate


def attribute(owner: str, name: str, values: Mapping[str, Callable[[], Any]]) -> Any:
    """What the `__getattr__` of a module gives for an old name, of an operator or of anything else; AttributeError for
    any other, which it may catch to word its own. The warning names the line that asked.

        def __getattr__(name):
            return deprecated.attribute(__name__, name, {"measure": lambda: bench})
    """
    if name not in values:
        raise AttributeError(f"{owner} has no {name!r}")
    _warn(find(f"{owner}.{name}"), above=1)  # its __getattr__
    return values[name]()


def module(what: str, to: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that moved: its names are those of the module `to`.

    __getattr__ = deprecated.module("opwright.kit.old", "opwright.kit.new")
    """
    line = find(what)

    def moved(name: str) -> Any:
        if name.startswith("__"):  # what Python itself asks a module for
            raise AttributeError(f"{what} has no {name!r}")
        value = getattr(importlib.import_module(to), name)
        _warn(line)
        return value

    moved.__deprecated__ = str(line)  # type: ignore[attr-defined]
    return moved


def variable(old: str, new: str | None = None) -> str:
    """The value of the environment variable `new`; that of `old`, with a warning, where only this is set."""
    line = find(old)
    given = os.environ.get(new, "") if new is not None else ""
    if given or not os.environ.get(old, ""):
        return given
    _warn(line, inside=_PACKAGE)  # nobody in the package has set it
    return os.environ[old]


def option(what: str) -> None:
    """Tell the user of a command that an option it was given is deprecated."""
    print(f"opwright: {find(what)}", file=sys.stderr)


def _warn(line: Deprecation, *, inside: str = __file__, above: int = 0) -> None:
    """Warn at the first frame that is not of the file or folder `inside`, or so many above it. Compiled code is silent:
    Dynamo traces no warning, and an old name shall not cost a graph that was whole."""
    if torch.compiler.is_compiling():
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        importing = "importlib" in file and "_bootstrap" in file  # frames that warnings does not count
        if not importing and not file.startswith(inside):
            break
        level, frame = level + (not importing), frame.f_back
    warnings.warn(str(line), DeprecationWarning, stacklevel=level + above)
