"""An operator as source: the pieces of a script or notebook that define it."""

from __future__ import annotations

import ast
import inspect
import linecache
import symtable
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from opwright.kit.declare import Declarations
from opwright.kit.dispatch import registry
from opwright.kit.op import Op

INSIDE = "is defined inside a function, where another process cannot find it"
DECLARES = frozenset(name for name in dir(Declarations) if not name.startswith("_"))


def sources(op: Op[..., Any]) -> tuple[list[tuple[str, str]], set[str]]:
    """The pieces of a script or notebook that define an operator, each with the file it stands in; and names whose
    values no source can spell. LookupError: there is no such piece.

    A piece holds imports, the operator, what belongs to it, and what those refer to; not what merely uses it.
    """
    scope = getattr(inspect.unwrap(op.reference), "__globals__", None)
    found = list(functions(op))
    if scope is None or not found:
        raise LookupError(f"{op.name}: its source cannot be found")
    wanted = {name for name, value in scope.items() if isinstance(value, Op) and value.home in _family(op)}
    if not wanted:
        raise LookupError(f"{op.name} {INSIDE}")
    files: dict[str, None] = dict.fromkeys(f.__code__.co_filename for f in found)
    pieces: dict[str, str] = {}
    while True:
        trees = {file: _parsed(op, file) for file in files}
        needed = _needed(list(trees.values()), wanted)
        pieces = {file: _slice(tree, needed, wanted) for file, tree in trees.items()}
        bound = {name for tree in trees.values() for s in tree.body for name in _binds(s)}
        more: dict[str, None] = {}
        for name in sorted(needed - bound):
            value = scope.get(name)
            if isinstance(value, (types.FunctionType, type)) and getattr(value, "__module__", "") == "__main__":
                file = value.__code__.co_filename if isinstance(value, types.FunctionType) else inspect.getfile(value)
                more[file] = None
        if set(more) <= set(files):
            break
        files = {**more, **files}
    values = {name: _spelled(name, scope[name]) for name in sorted(needed - bound) if name in scope}
    text = "\n".join(line for line in values.values() if line is not None)
    return [("<values>", text), *pieces.items()], {name for name, line in values.items() if line is None}


def _family(op: Op[..., Any]) -> list[Op[..., Any]]:
    plain = registry.find(op.qualname.removesuffix("_"))
    return [op] if plain is None else [op, plain]


def functions(op: Op[..., Any]) -> Iterator[types.FunctionType]:
    """The functions in Python that an operator is made of."""
    for member in _family(op):
        for rung in member.ladder:
            # The reference first: what belongs to it may stand in later cells.
            declared: list[Callable[..., Any] | None] = [rung.reference] if rung.rung is None else []
            spec = rung.spec
            declared += [spec.formula.function] if spec.formula is not None else []
            declared += [spec.cost, *spec.samples, *spec.rejects, *(k.function for k in spec.kernels)]
            for function in declared:
                plain = inspect.unwrap(function) if function is not None else None
                if isinstance(plain, types.FunctionType) and not plain.__module__.startswith("opwright."):
                    if plain.__name__ == "reference_in_place":
                        continue
                    yield plain


def _parsed(op: Op[..., Any], file: str) -> ast.Module:
    text = "".join(linecache.getlines(file)) or (Path(file).read_text(encoding="utf-8") if Path(file).is_file() else "")
    if not text:
        raise LookupError(f"{op.name}: the source of {file} cannot be found")
    # A cell may hold lines for the notebook alone.
    lines = [line if not line.lstrip().startswith(("%", "!")) else "" for line in text.splitlines()]
    return ast.parse("\n".join(lines))


def _binds(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
    elif isinstance(statement, COMPOUND) and not _is_main_block(statement):
        for inner in ast.iter_child_nodes(statement):
            if isinstance(inner, ast.stmt):  # and not what a loop runs over: that may be the operator, in use
                yield from _binds(inner)


COMPOUND = (ast.If, ast.Try, ast.For, ast.While, ast.With)


def _is_main_block(statement: ast.stmt) -> bool:
    """Whether it is what a script does when it is run: it uses operators, and defines none."""
    return isinstance(statement, ast.If) and "__name__" in {
        n.id for n in ast.walk(statement.test) if isinstance(n, ast.Name)
    }


def _changes(statement: ast.stmt) -> Iterator[str]:
    """The names whose values a statement changes in place: `table["k"] = 3`, `values.append(1.0)`."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Delete)):
        places = statement.targets if isinstance(statement, (ast.Assign, ast.Delete)) else [statement.target]
        for place in places:
            while isinstance(place, (ast.Subscript, ast.Attribute)):
                place = place.value
            if isinstance(place, ast.Name):
                yield place.id
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        root, last = _root(statement.value)
        if root is not None and last:
            yield root
    elif isinstance(statement, COMPOUND) and not _is_main_block(statement):
        for inner in ast.iter_child_nodes(statement):
            if isinstance(inner, ast.stmt):
                yield from _changes(inner)


def _uses(statement: ast.stmt) -> set[str]:
    """The global names that a statement mentions, in functions too; not what is theirs alone."""
    found: set[str] = set()

    def look(table: symtable.SymbolTable) -> None:
        outermost = table.get_type() == "module"
        found.update(s.get_name() for s in table.get_symbols() if outermost or s.is_global())
        for inner in table.get_children():
            look(inner)

    look(symtable.symtable(ast.unparse(statement), "<statement>", "exec"))
    return found


def _root(node: ast.expr) -> tuple[str | None, str]:
    """The name that an expression such as `op.backward.kernel_file(…)` begins with, and its last attribute."""
    last = ""
    while isinstance(node, (ast.Attribute, ast.Call)):
        if isinstance(node, ast.Attribute):
            last = last or node.attr
            node = node.value
        else:
            node = node.func
    return (node.id if isinstance(node, ast.Name) else None), last


def _declares(statement: ast.stmt, wanted: set[str]) -> bool:
    """Whether a statement declares something of the operator."""
    found: list[ast.expr] = []
    if isinstance(statement, ast.FunctionDef):
        found = list(statement.decorator_list)
    elif isinstance(statement, ast.Expr):
        found = [statement.value]
    return any(root in wanted and last in DECLARES for root, last in map(_root, found))


def _needed(trees: list[ast.Module], wanted: set[str]) -> set[str]:
    needed = set(wanted)
    while True:
        before = len(needed)
        for tree in trees:
            values = _values_of(tree)
            for statement in tree.body:
                if not isinstance(statement, IMPORTS) and _belongs(statement, needed, wanted, values):
                    needed |= _uses(statement)
        if len(needed) == before:
            return needed


IMPORTS = (ast.Import, ast.ImportFrom)


def _values_of(tree: ast.Module) -> set[str]:
    """The names that stand for values, rather than modules, functions and classes: these alone are changed."""
    plain = (*IMPORTS, ast.FunctionDef, ast.ClassDef)
    return {name for s in tree.body if not isinstance(s, plain) for name in _binds(s)}


def _belongs(statement: ast.stmt, needed: set[str], wanted: set[str], values: set[str]) -> bool:
    """Whether a statement has a part in what the operator is."""
    binds = set(_binds(statement)) - {"_"}
    changes = set(_changes(statement)) & (values - wanted)
    return bool((binds | changes) & needed) or _declares(statement, wanted)


def _slice(tree: ast.Module, needed: set[str], wanted: set[str]) -> str:
    values = _values_of(tree)
    kept = [s for s in tree.body if isinstance(s, IMPORTS) or _belongs(s, needed, wanted, values)]
    return "\n".join(map(ast.unparse, kept))


def _spelled(name: str, value: Any) -> str | None:
    """A line that gives a name its value of now: modules by import, plain values as they are; None for others."""
    if isinstance(value, types.ModuleType):
        return f"import importlib\n{name} = importlib.import_module({value.__name__!r})"
    return f"{name} = {value!r}" if isinstance(value, (bool, int, float, complex, str, bytes)) else None
