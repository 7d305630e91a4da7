"""Operators in folders: finding the library's own, and loading a user's from anywhere on disk."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import traceback
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opwright.kit import packages
from opwright.kit.build.foreign import LOADED, refuse_foreign
from opwright.kit.op import Op
from opwright.kit.packages import FILE


def files(root: Path) -> list[Path]:
    """The files of the operators in folders below `root`."""
    return sorted(root.glob(f"*/{FILE}"))


def operators_of(module: types.ModuleType) -> dict[str, Op[..., Any]]:
    """The operators that a module defines, by the name they have there."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, Op) and value.__module__ == module.__name__ and not name.startswith("_")
    }


def discover(root: Path, package: str) -> dict[str, Op[..., Any]]:
    """Import every operator folder of a package and give the operators by name."""
    found: dict[str, Op[..., Any]] = {}
    collecting = gc.isenabled()
    gc.disable()  # what is made here stays, and one look through all of torch would take longer than the whole import
    try:
        _discover(root, package, found)
    finally:
        if collecting:
            gc.enable()
    return found


def _discover(root: Path, package: str, found: dict[str, Op[..., Any]]) -> None:
    for file in files(root):
        module = importlib.import_module(f"{package}.{file.parent.name}.{file.stem}")
        found.update(operators_of(module))


class Loaded(types.SimpleNamespace):
    """The operators of a folder, by name. One whose file is broken raises what is wrong with it."""

    def __getattr__(self, name: str) -> Any:
        broken = self.__dict__.get("__broken__", {}).get(name)
        if broken is None:
            known = ", ".join(n for n in self.__dict__ if not n.startswith("__"))
            raise AttributeError(f"no operator {name!r} was loaded; there are {known}")
        raise broken


def load(path: str | os.PathLike[str], /) -> types.SimpleNamespace:
    """Load the operators of a file, of an operator's folder, of a folder of such folders, or of a package.

    A file inside a package is imported as a module of it, so that its relative imports work and its operators have
    the package's namespace. Of a folder with a broken file the others are loaded, with a warning. Loading the same
    place again replaces its operators.

    >>> import torch, opwright as ow, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "double.py").write_text('''
    ... import torch, opwright as ow
    ... @ow.op
    ... def double(x: torch.Tensor) -> torch.Tensor:
    ...     return x + x
    ... ''')
    >>> ow.load(folder / "double.py").double(torch.ones(2))
    tensor([2., 2.])
    """
    if not os.fspath(path):
        raise ValueError("load: the path is empty; name a file or a folder")
    place = Path(path).expanduser().resolve()
    if place.is_file():
        return Loaded(**_operators_of_file(place))
    if not place.is_dir():
        raise FileNotFoundError(f"there is no file or folder {place}")
    if not os.access(place, os.R_OK | os.X_OK):
        raise PermissionError(f"the folder {place} cannot be read")
    if (place / FILE).is_file():
        return Loaded(**_operators_of_file(place / FILE))
    refuse_foreign(place)
    package = packages.package_file(place / "__init__.py") if (place / "__init__.py").is_file() else None
    listed = files(place) if package is None else packages.files_below(place)
    found: dict[str, Op[..., Any]] = {}
    broken: dict[str, Exception] = {}
    if package is not None:
        packages.import_from(package)
    for file in listed:
        try:
            found.update(_operators_of_file(file) if file.name == FILE else operators_of(_import_file(file)))
        except Exception as e:
            broken[file.parent.name if file.name == FILE else file.stem] = e
    if package is not None:
        found |= packages.operators_in(package.module)
    if broken and not found:
        raise _all_broken(place, [*broken.values()])
    if not found:
        raise FileNotFoundError(f"{place} holds no operator: neither an {FILE} nor folders with one")
    for mistake in broken.values():
        warnings.warn(f"opwright: {said(mistake)}", RuntimeWarning, stacklevel=2)
    return Loaded(**found, __broken__=broken) if broken else Loaded(**found)


def _all_broken(place: Path, mistakes: list[Exception]) -> Exception:
    """What to raise of a folder in which no file can be loaded."""
    if len(mistakes) == 1:
        return mistakes[0]
    each = "\n".join(said(mistake) for mistake in mistakes)
    return ImportError(f"{place}: none of its {len(mistakes)} files can be loaded\n{each}")


def said(mistake: BaseException) -> str:
    """An error that arose in somebody's file, and where."""
    what = mistake.msg if isinstance(mistake, SyntaxError) else mistake
    return f"{type(mistake).__name__}: {what}{where(mistake)}"


def where(mistake: BaseException) -> str:
    """Where in somebody's file an error arose while it was loaded: file, line and source; empty where not in one."""
    if isinstance(mistake, SyntaxError) and mistake.filename is not None:
        text, file, line = mistake.text or "", mistake.filename, mistake.lineno or 0
    else:
        frames = [f for f in traceback.extract_tb(mistake.__traceback__) if not _is_ours(f.filename)]
        if not frames:
            return ""
        text, file, line = frames[-1].line or "", frames[-1].filename, frames[-1].lineno or 0
    return f"\n  {os.path.relpath(file)}, line {line}: {text.strip()}".removesuffix(": ")


def _is_ours(file: str) -> bool:
    return file.startswith((str(Path(__file__).parent.parent), "<", os.path.dirname(os.__file__)))


def _operators_of_file(file: Path) -> dict[str, Op[..., Any]]:
    module = _import_file(file)
    operators = operators_of(module)
    if not operators:
        raise ValueError(f"{file} defines no operator; put @ow.op on an annotated function in it")
    return operators


@contextlib.contextmanager
def _alone(file: Path, name: str) -> Iterator[None]:
    """Say of a relative import that finds nothing what it means in a folder without a package."""
    try:
        yield
    except ImportError as e:
        beyond = "relative import beyond top-level" in str(e)
        if not beyond and not str(e.name).startswith(f"{LOADED}."):
            raise
        missing = re.search(r"cannot import name '(\w+)'", str(e))
        path = str(e.name).removeprefix(f"{name}.") if e.name != name else missing[1] if missing else ""
        inside = not beyond and path and not path.startswith(f"{LOADED}.")
        beside = f"there is no {path.replace('.', '/')}.py beside {file.name}" if inside else "it leaves the folder"
        cure = f"put {path.replace('.', '/')}.py there, or " if inside else "put what it imports beside it, or "
        why = f"a relative import finds nothing: {beside}, and {file.parent} is in no package; "
        cure += "make the folder that holds both a package, by an __init__.py"
        raise ImportError(why + cure).with_traceback(e.__traceback__) from None


def _import_file(file: Path) -> types.ModuleType:
    for place in (file, file.parent):
        refuse_foreign(place)
    inside = packages.package_file(file)
    if inside is not None:
        return packages.import_from(inside)
    # The name must be the same each time this file is loaded, and differ between files of one name.
    digest = hashlib.sha256(str(file).encode()).hexdigest()[:12]
    stem = file.parent.name if file.name == FILE else file.stem
    name = f"{LOADED}.{stem}_{digest}"
    # A package, so that op.py may import its neighbours: `from .constants import …`.
    sys.modules.setdefault(LOADED, types.ModuleType(LOADED)).__path__ = []
    for loaded in [m for m in sys.modules if m.startswith(f"{name}.")]:
        del sys.modules[loaded]
    source = file.suffix in importlib.machinery.SOURCE_SUFFIXES
    loader = packages.source_loader(name, file) if source else None
    beside = [str(file.parent)]
    spec = importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=beside)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    previous = sys.modules.get(name)
    sys.modules[name] = module
    try:
        with packages.importing(str(file)), _alone(file, name):
            spec.loader.exec_module(module)
    except BaseException:
        if previous is None:
            del sys.modules[name]
        else:
            sys.modules[name] = previous
        raise
    return module
