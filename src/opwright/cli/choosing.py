"""Which operators are meant: by name, by file or folder, by module or package."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import os
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import opwright as ow
from opwright.kit import packages
from opwright.kit.dispatch import registry
from opwright.kit.load import said, where

Names = Annotated[
    list[str] | None, typer.Argument(metavar="OP", help="Operators, files, folders or modules; all if none.")
]
console = Console(stderr=True)
broken: list[str] = []
"""What could not be loaded beside what could; commands then end with 1."""


def library_operator(name: str) -> ow.Op[..., Any] | None:
    """The library's operator of a name, `cube` or `opwright.cube`. A folder of the same name here makes the former
    ambiguous."""
    try:
        op: ow.Op[..., Any] | None = registry.recall(f"opwright::{name.removeprefix('opwright.')}")
    except (LookupError, TypeError):
        op = None
    here = Path(name)
    if op is not None and (here / packages.FILE).is_file():
        own = Path(ow.__file__).parent
        if not here.resolve().is_relative_to(own):
            raise ValueError(
                f"{name} is a folder here and an operator of the library: write ./{name} or opwright.{name}"
            )
    return op


def chosen(names: list[str] | None) -> list[ow.Op[..., Any]]:
    """The operators meant by names, paths and modules; all of the library's where none is given."""
    if not names:
        return [op for op in registry.operators() if op.home is op]
    found: dict[ow.Op[..., Any], None] = {}
    for name in names:
        op = library_operator(name)
        if op is not None:
            found[op] = None
        elif Path(name).exists() or os.sep in name:
            found |= dict.fromkeys(op for op in _loaded(name) if op.home is op)
        else:
            found |= dict.fromkeys(_imported(name))
    return list(found)


def tell(mistake: BaseException) -> str:
    """A user's mistake in a line, and where it stands if that is in a file of theirs."""
    if isinstance(mistake, OSError) and mistake.filename is not None:
        place = Path(os.fsdecode(mistake.filename))
        first = re.fullmatch(r"\.(.+)\.\w{8}", place.name)  # a file has another name while it is being written
        place = place.with_name(first[1]) if first else place
        return f"{place}: {(mistake.strerror or str(mistake)).lower()}"
    kind = "" if isinstance(mistake, (ValueError, OSError, RuntimeError, Broken)) else f"{type(mistake).__name__}: "
    return f"{kind}{mistake}"


class Broken(ImportError):
    """A file of operators cannot be loaded."""


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Say of an error in somebody's file where it is."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a file prints is not what a command says
            yield
    except Exception as e:
        if not where(e):
            raise
        raise Broken(said(e)) from None


def _loaded(path: str) -> list[ow.Op[..., Any]]:
    with warnings.catch_warnings(record=True) as caught, _told():
        warnings.simplefilter("always", RuntimeWarning)
        loaded = [op for op in vars(ow.load(path)).values() if isinstance(op, ow.Op)]
    for warning in caught:
        text = str(warning.message)
        if text.startswith("opwright: "):
            _complain(text)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return loaded


def _imported(name: str) -> list[ow.Op[..., Any]]:
    """The operators of a module or package by its dotted name, or one operator in it."""
    packages.look_in(Path.cwd(), name)
    module, _, last = name.rpartition(".")
    for asked, attribute in ((name, ""), (module, last)):
        if not all(part.isidentifier() for part in asked.split(".")):
            continue
        if _is_missing(asked):
            continue
        with _told(), packages.importing(asked):
            value = importlib.import_module(asked)
        found = getattr(value, attribute, None) if attribute else value
        if isinstance(found, ow.Op):
            return [found]
        if not attribute:
            return _in_package(asked, value)
        printed = _printed(asked, value, attribute)
        if printed is not None:
            return [printed]
    raise ValueError(f"there is no operator, file or module {name!r}; {_instead(name)}")


def _printed(namespace: str, module: Any, name: str) -> ow.Op[..., Any] | None:
    """The operator that is printed as `namespace.name`, in whichever module of the package it is defined."""
    # The likely ones first: others may be broken, and are not asked for.
    files = sorted(_files_of(namespace, module), key=lambda f: not any(name.startswith(p) for p in _own_names(f)))
    for file in [None, *files]:
        if file is not None:
            _import_one(file.module)
        with contextlib.suppress(LookupError, TypeError):
            return registry.recall(f"{namespace}::{name}")
    return None


def _own_names(file: packages.PackageFile) -> list[str]:
    """What operators in a file are likely called: as its folder, or as itself."""
    return file.module.split(".")[-2:]


def _instead(name: str) -> str:
    """What may have been meant by a name that nothing has."""
    if name.startswith("user."):
        return "operators of files outside of packages are printed as user.…: name their file or folder"
    homes = [o for o in registry.operators() if o.home is o]
    known = [o.name for o in homes if o.namespace == "opwright"]
    module, _, last = name.rpartition(".")
    if module:
        inside = [m.name for m in pkgutil.iter_modules(getattr(sys.modules.get(module), "__path__", ()))]
        near = difflib.get_close_matches(last, [*(o.name for o in homes if o.namespace == module), *inside], 1)
    else:
        folders = [p.parent.name for p in Path.cwd().glob(f"*/{packages.FILE}")]
        near = difflib.get_close_matches(last, [*known, *folders, *(m.name for m in pkgutil.iter_modules())], 1)
    prefix = f"{module}." if module else ""
    return f"did you mean {prefix}{near[0]}?" if near else f"the operators are {', '.join(known)}"


def _is_missing(module: str) -> bool:
    """Whether there is no such module, as opposed to one that is broken."""
    with _told(), packages.importing(module):  # it imports what is above
        try:
            return importlib.util.find_spec(module) is None
        except ModuleNotFoundError as e:
            if e.name is None or not f"{module}.".startswith(f"{e.name}."):
                raise
            return True


def _import_one(module: str) -> None:
    """A broken one does not hide the others."""
    try:
        with packages.importing(module):
            importlib.import_module(module)
    except Exception as e:
        _complain(f"opwright: {said(e)}")


def _complain(text: str) -> None:
    broken.append(text)
    console.print(text, style="red", highlight=False, soft_wrap=True, markup=False)


def _files_of(name: str, module: Any) -> list[packages.PackageFile]:
    """The files of a package that may define operators; none of opwright's, which are imported with it."""
    if name == "opwright":
        return []
    files = [file for folder in getattr(module, "__path__", ()) for file in packages.files_below(Path(folder))]
    inside = [packages.package_file(file) for file in files]
    return [file for file in inside if file is not None and file.module.startswith(f"{name}.")]


def _in_package(name: str, module: Any) -> list[ow.Op[..., Any]]:
    for file in _files_of(name, module):
        _import_one(file.module)
    found = list(packages.operators_in(name).values())
    if not found:
        raise ValueError(f"the module {name} defines no operator; put @ow.op on an annotated function in it")
    return found
