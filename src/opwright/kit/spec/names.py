"""What a function's code names: the values it closes over, the globals it reads, what it imports, its defaults."""

from __future__ import annotations

import dis
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

_OUTSIDE = {"torch", "numpy", "triton", "opwright", "builtins", *sys.stdlib_module_names} - {"__main__"}
_IMPORT = dis.opmap["IMPORT_NAME"]


class Unknown:
    """Stands for a value that nobody can look at yet."""


def foreign(module: Any) -> bool:
    """Whether a module belongs to PyTorch, Python or opwright, whose versions say what is in it.

    >>> foreign("torch.nn"), foreign("__main__"), foreign("opwright.ops.axpby.op")
    (True, False, False)
    """
    module = module if isinstance(module, str) else ""
    return module.partition(".")[0] in _OUTSIDE and not module.startswith("opwright.ops.")


def foreign_function(function: types.FunctionType) -> bool:
    """Whether a function's code is PyTorch's, Python's or opwright's; `__module__` is what a decorator wrote there."""
    return foreign(function.__globals__.get("__name__"))


def closed_over(function: Any) -> Iterator[tuple[str, Any]]:
    """What a function holds of the function around it, as far as that is there yet."""
    cells = getattr(function, "__closure__", None) or ()
    for name, cell in zip(function.__code__.co_freevars if cells else (), cells, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue


def defaults(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The defaults of a function's parameters."""
    for i, value in enumerate(function.__defaults__ or ()):
        yield f"default {i}", value
    yield from (function.__kwdefaults__ or {}).items()


def words(function: types.FunctionType) -> set[str]:
    """Every global and attribute that the code names."""
    return {name for code in _codes(function.__code__) for name in code.co_names}


def named(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """All that a function names, with the name; of modules, the attributes whose names stand in the code."""
    used = words(function)
    scope = function.__globals__
    found = [*closed_over(function), *((name, scope[name]) for name in sorted(used) if name in scope)]
    found += [each for code in _codes(function.__code__) for each in _imported(code, scope)]
    seen: set[int] = set()
    for name, value in found:
        yield from _reached(name, value, used | {"__getattr__"}, seen)
    yield from defaults(function)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _reached(path: str, value: Any, used: set[str], seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The value itself; of a module, what the code may reach through it: `helpers.scale`, `package.helpers.scale`."""
    if not isinstance(value, types.ModuleType) or foreign(value.__name__):
        yield path, value
    elif id(value) not in seen:
        seen.add(id(value))
        for name in sorted(used & vars(value).keys()):
            yield from _reached(f"{path}.{name}", vars(value)[name], used, seen)


def _imported(code: types.CodeType, scope: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a function imports when it runs. Nothing is imported here: what has not been is unknown."""
    if _IMPORT not in code.co_code[::2]:
        return
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for i, step in enumerate(steps):
        if step.opcode != _IMPORT:
            continue
        level, wanted = steps[i - 2].argval, steps[i - 1].argval
        package = scope.get("__package__") or str(scope.get("__name__")).rpartition(".")[0]
        name = importlib.util.resolve_name("." * level + step.argval, package)
        if foreign(name):
            continue
        if name not in sys.modules:
            yield name, Unknown()
            continue
        if not wanted:  # `import a.b` binds a
            yield name.partition(".")[0], sys.modules[name.partition(".")[0]]
        for each in wanted or ():
            inside = vars(sys.modules[name])
            yield each, inside[each] if each in inside else sys.modules.get(f"{name}.{each}", Unknown())
