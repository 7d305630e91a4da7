"""Operators that live in a package: found from their file, and imported as what they are there.

So their namespace, their relative imports and their built libraries are the same whoever loads them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opwright.kit.build.foreign import LOADED, PACKAGES, refuse_foreign, refuse_found
from opwright.kit.dispatch import registry
from opwright.kit.op import Op

FILE = "op.py"
"""The file in an operator's folder that defines it."""

PROJECT = ("pyproject.toml", "setup.py", ".git")
"""What lies in the outermost folder of a project, above which there is no package of it."""

_loaded: set[str] = set()
"""The modules that were imported here, and are read anew when they are loaded again."""


class PackageFile(NamedTuple):
    """Where a file stands among packages."""

    module: str
    root: Path
    """The folder that holds its outermost package."""

    @property
    def package(self) -> str:
        """The outermost package."""
        return self.module.partition(".")[0]


def package_file(file: Path) -> PackageFile | None:
    """The module that a file is in the package around it; None where there is no package."""
    folder = None
    for above in file.parents:
        if (above / "__init__.py").is_file():
            folder = above
            break
        if any((above / name).exists() for name in PROJECT):
            break
    if folder is None:
        return None
    while (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    parts = [*file.relative_to(folder.parent).with_suffix("").parts]
    if parts[-1] == "__init__":
        parts.pop()
    if file.suffix != ".py" or not all(p.isidentifier() for p in parts) or parts[0] in sys.stdlib_module_names:
        return None
    return PackageFile(".".join(parts), folder.parent)


@contextlib.contextmanager
def importing(what: str) -> Iterator[None]:
    """Whatever a file does while it is imported, it is that file which is broken: also where it ends the program, or is
    no text. `what` names the file where Python does not."""
    try:
        yield
    except SystemExit as e:
        code = "" if e.code is None else repr(e.code)
        why = f"importing it ends the program, by sys.exit({code})"
        raise ImportError(f"{why}; let it do so only under `if __name__ == '__main__':`").with_traceback(
            e.__traceback__
        ) from None
    except (SyntaxError, ValueError) as e:
        named = _named(e, what)
        if named is e:
            raise
        raise named from None


def _named(e: Exception, file: str) -> Exception:
    """An error of Python's parser, with the file that it is about: of one with null bytes it names none."""
    told = isinstance(e, SyntaxError) and e.filename is not None
    if told or "null bytes" not in str(e):
        return e
    return SyntaxError(f"{e}: it is no Python source", (file, 1, None, None))


def import_from(file: PackageFile) -> types.ModuleType:
    """Import a file's module. One that was imported by this function is read anew, with its neighbours."""
    known = sys.modules.get(file.package)
    if known is None:
        PACKAGES[file.package] = file.root
    elif str(file.root / file.package) not in [os.path.realpath(p) for p in getattr(known, "__path__", ())]:
        found = getattr(known, "__file__", None) or known
        raise ImportError(
            f"{file.module} lies in {file.root}, and {file.package} was imported from {found}; work with one of "
            f"them: `pip install -e {file.root}` makes this the installed one"
        )
    around = f"{file.module.rpartition('.')[0]}."
    before: dict[str, types.ModuleType] = {}
    if file.module in _loaded:
        names = [n for n in sys.modules if n.startswith(around) or n == file.module]
        before = {name: sys.modules.pop(name) for name in names}
    fresh = file.module not in sys.modules
    try:
        with importing(file.module):
            module = importlib.import_module(file.module)
    except BaseException:
        sys.modules.update(before)
        raise
    if fresh:
        _loaded.add(file.module)
    return module


def look_in(folder: Path, module: str) -> None:
    """Let a module be found in a folder, if Python does not find it elsewhere. Nothing else is: the folder does not
    become a place to import from."""
    top = module.partition(".")[0]
    there = (folder / top / "__init__.py").is_file() or (folder / f"{top}.py").is_file()
    if there and top.isidentifier() and top not in sys.modules and importlib.util.find_spec(top) is None:
        PACKAGES[top] = folder


def files_below(folder: Path) -> list[Path]:
    """Every file below a package's folder that may define operators: those called op.py, and others that speak of
    opwright. Not what runs or tests it."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).parts
        aside = file.name in ("__main__.py", "conftest.py", "setup.py") or file.name.startswith("test_")
        if aside or any(p.startswith(".") or p == "tests" for p in parts):
            continue
        if file.name == FILE or b"opwright" in file.read_bytes():
            found.append(file)
    return found


def operators_in(module: str) -> dict[str, Op[..., Any]]:
    """The operators defined so far in a module and in those below it, by name."""
    known = [op for op in registry.operators() if op.home is op]
    return {op.name: op for op in known if op.origin == module or op.origin.startswith(f"{module}.")}


class _Source(importlib.machinery.SourceFileLoader):
    """Compiles the source each time. Bytecode beside it is neither read nor written: in a folder of everybody's,
    __pycache__ may be somebody else's."""

    def get_code(self, fullname: str) -> types.CodeType | None:
        path = self.get_filename(fullname)
        with importing(path):
            code: types.CodeType = self.source_to_code(self.get_data(path), path)
        return code

    def get_data(self, path: str) -> bytes:
        with open(path, "rb") as file:
            refuse_found(Path(path), os.fstat(file.fileno()))  # of what is read, whatever the name leads to by now
            return file.read()


def source_loader(name: str, file: Path) -> importlib.machinery.SourceFileLoader:
    """What reads a file that lies anywhere on disk."""
    return _Source(name, str(file))


class _Neighbours(importlib.abc.MetaPathFinder):
    """Finds what a loaded file imports from beside itself, as Python does, and looks whose it is."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package = fullname.partition(".")[0]
        if package in PACKAGES:
            path = [str(PACKAGES[package])] if path is None else path
        elif package != LOADED or fullname == LOADED:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if found is not None and found.origin is not None and os.path.isfile(found.origin):
            refuse_foreign(Path(found.origin))
            if isinstance(found.loader, importlib.machinery.SourceFileLoader):
                found.loader = _Source(fullname, found.origin)
        return found


sys.meta_path.insert(0, _Neighbours())
