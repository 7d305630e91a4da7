"""Operators in folders: finding the library's own, and loading a user's from anywhere on disk."""

from __future__ import annotations

import gc
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opwright.kit.build.foreign import LOADED, refuse_foreign, refuse_found
from opwright.kit.op import Op

FILE = "op.py"
"""The file in an operator's folder that defines it."""


def folders(root: Path) -> list[Path]:
    """The operators' folders below `root`: those that hold an op.py."""
    return sorted(p.parent for p in root.glob(f"*/{FILE}"))


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
    for folder in folders(root):
        module = importlib.import_module(f"{package}.{folder.name}.{FILE.removesuffix('.py')}")
        found.update(operators_of(module))
    for op in found.values():
        op.define_gradient()  # so that torch.ops knows it, which graphs may name


def load(path: str | os.PathLike[str], /) -> types.SimpleNamespace:
    """Load the operators of a file, of an operator's folder, or of a folder of such folders.

    Loading the same place again replaces its operators.

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
        files = [place]
    elif (place / FILE).is_file():
        files = [place / FILE]
    elif place.is_dir():
        refuse_foreign(place)
        files = [folder / FILE for folder in folders(place)]
        if not files:
            raise FileNotFoundError(f"{place} holds no operator: neither an {FILE} nor folders with one")
    else:
        raise FileNotFoundError(f"there is no file or folder {place}")
    found: dict[str, Op[..., Any]] = {}
    for file in files:
        module = _import_file(file)
        operators = operators_of(module)
        if not operators:
            raise ValueError(f"{file} defines no operator; put @ow.op on an annotated function in it")
        found.update(operators)
    return types.SimpleNamespace(**found)


class _Source(importlib.machinery.SourceFileLoader):
    """Compiles the source each time. Bytecode beside it is neither read nor written: in a folder of everybody's,
    __pycache__ may be somebody else's."""

    def get_code(self, fullname: str) -> types.CodeType | None:
        path = self.get_filename(fullname)
        code: types.CodeType = self.source_to_code(self.get_data(path), path)
        return code

    def get_data(self, path: str) -> bytes:
        with open(path, "rb") as file:
            refuse_found(Path(path), os.fstat(file.fileno()))  # of what is read, whatever the name leads to by now
            return file.read()


class _Neighbours(importlib.abc.MetaPathFinder):
    """Finds what a loaded file imports from beside itself, as Python does, and looks whose it is."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{LOADED}."):
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if found is not None and found.origin is not None and os.path.isfile(found.origin):
            refuse_foreign(Path(found.origin))
            if isinstance(found.loader, importlib.machinery.SourceFileLoader):
                found.loader = _Source(fullname, found.origin)
        return found


sys.meta_path.insert(0, _Neighbours())


def _import_file(file: Path) -> types.ModuleType:
    for place in (file, file.parent):
        refuse_foreign(place)
    # The name must be the same each time this file is loaded, and differ between files of one name.
    digest = hashlib.sha256(str(file).encode()).hexdigest()[:12]
    stem = file.parent.name if file.name == FILE else file.stem
    name = f"{LOADED}.{stem}_{digest}"
    # A package, so that op.py may import its neighbours: `from .constants import …`.
    sys.modules.setdefault(LOADED, types.ModuleType(LOADED)).__path__ = []
    for loaded in [m for m in sys.modules if m.startswith(f"{name}.")]:
        del sys.modules[loaded]
    source = file.suffix in importlib.machinery.SOURCE_SUFFIXES
    spec = importlib.util.spec_from_file_location(
        name, file, loader=_Source(name, str(file)) if source else None, submodule_search_locations=[str(file.parent)]
    )
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    previous = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if previous is None:
            del sys.modules[name]
        else:
            sys.modules[name] = previous
        raise
    return module
