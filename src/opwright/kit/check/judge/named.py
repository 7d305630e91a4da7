"""Functions by name, `module:function` or `file.py:function`, and how one reaches another process."""

from __future__ import annotations

import base64
import functools
import gc
import importlib
import importlib.util
import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any

from opwright.kit.packages import importing
from opwright.kit.spec import words

Way = dict[str, Any]


class Missing(ValueError):
    """There is nothing of such a name."""


CURE = "give it by its name, as `module:function` or `file.py:function`"


def find(name: str) -> Any:
    """What a name stands for.

    >>> find("math:sqrt")(4.0)
    2.0
    """
    place, _, attribute = name.rpartition(":")
    if not place or not all(part.isidentifier() for part in attribute.split(".")):
        raise Missing(f"{name!r} names no function: write module:function, or file.py:function")
    value: Any = _module(place)
    for part in attribute.split("."):
        if not hasattr(value, part):
            near = words.near(part, [n for n in dir(value) if not n.startswith("_")])
            raise Missing(f"{place} has no {attribute!r}{near}")
        value = getattr(value, part)
    return value


def _module(place: str) -> types.ModuleType:
    if place.endswith(".py") or os.sep in place:
        return _of_file(Path(place).resolve())
    try:
        with importing(place):
            return importlib.import_module(place)
    except ModuleNotFoundError as e:
        if e.name is None or not f"{place}.".startswith(f"{e.name}."):
            raise
        raise Missing(f"there is no module {place!r}") from None


def _of_file(file: Path) -> types.ModuleType:
    if not file.is_file():
        raise Missing(f"there is no file {file}")
    for module in list(sys.modules.values()):  # once for all names in it
        if getattr(module, "__file__", None) == str(file):
            return module
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # for what lies beside it
    spec = importlib.util.spec_from_file_location(file.stem if file.stem not in sys.modules else f"{file.stem}_", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        with importing(str(file)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def way_of(candidate: Any) -> Way:
    """How another process comes by a function: by its name, from its extension's file, or pickled."""
    path = [p or os.getcwd() for p in sys.path]
    if isinstance(candidate, str):
        place, _, attribute = candidate.rpartition(":")
        if place.endswith(".py") or os.sep in place:
            candidate = f"{Path(place).resolve()}:{attribute}"
        return {"path": path, "name": candidate}
    module = sys.modules.get(getattr(candidate, "__module__", None) or "")
    if module is not None and module.__name__ != "__main__" and getattr(module, "__spec__", None) is not None:
        name = getattr(candidate, "__qualname__", "")
        for known in (name, *vars(module)):  # what wraps a function goes by that function's name, and is another
            if known and _at(module, known) is candidate:
                return {"path": path, "name": f"{module.__name__}:{known}"}
    extension = _extension_of(candidate)
    if extension is not None:
        return {"path": path, "extension": extension, "attribute": candidate.__name__}
    return {"path": path, "pickle": _pickled(candidate)}


def _at(module: types.ModuleType, name: str) -> Any:
    try:
        return functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        return None


def _extension_of(candidate: Any) -> list[str] | None:
    """The name and file of the compiled module that a function is from. torch.utils.cpp_extension does not enter its
    modules in sys.modules."""
    name = getattr(candidate, "__name__", None)
    if not isinstance(candidate, types.BuiltinFunctionType) or not name:
        return None
    for module in gc.get_objects():
        if isinstance(module, types.ModuleType) and vars(module).get(name) is candidate:
            file = getattr(module, "__file__", None)
            return [module.__name__, file] if file and not file.endswith(".py") else None
    return None


def _pickled(candidate: Any) -> str:
    try:
        import cloudpickle  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise TypeError(
            f"check: {label(candidate)} is defined in a script or inside a function, and takes cloudpickle to reach a "
            f"process of its own: pip install 'opwright[notebook]', or {CURE}"
        ) from None
    try:
        return base64.b64encode(cloudpickle.dumps(candidate)).decode()
    except Exception as e:
        raise TypeError(f"check: {label(candidate)} cannot reach a process of its own: {e}; {CURE}") from None


def arrive(way: Way) -> Any:
    """The function that another process speaks of."""
    sys.path[:] = dict.fromkeys([*sys.path, *way["path"]])
    if "name" in way:
        return find(way["name"])
    if "extension" in way:
        name, file = way["extension"]
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, way["attribute"])
    return pickle.loads(base64.b64decode(way["pickle"]))


def label(function: Any) -> str:
    """What a function is called in reports."""
    if isinstance(function, str):
        return function.rpartition(":")[2]
    name = getattr(function, "__name__", None) or type(function).__name__
    return "lambda" if name == "<lambda>" else str(name)
