"""The numbers in the source of a candidate, which is read and not imported."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opwright.kit.check.constants import Constants, in_source, sorted_out


def numbers_of(candidate: Any) -> Constants:
    """The numbers in what defines a candidate: the function, what it names of its own file, and sources of C++ or CUDA
    that stand there as texts. All of the file where it is not clear what defines it."""
    place, _, name = candidate.rpartition(":") if isinstance(candidate, str) else ("", "", "")
    if not isinstance(candidate, str):
        place, name = getattr(candidate, "__module__", None) or "", getattr(candidate, "__qualname__", "")
    file: str | None = place if place.endswith(".py") else None
    if file is None and place and place != "__main__":
        try:
            known = sys.modules.get(place)
            spec = known.__spec__ if known is not None else importlib.util.find_spec(place)
            file = spec.origin if spec is not None else None
        except (ImportError, ValueError, AttributeError):
            file = None
    code = getattr(getattr(candidate, "fn", candidate), "__code__", None)
    file = code.co_filename if file is None and code is not None else file
    if not file or not file.endswith(".py"):
        return Constants()
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return Constants()
    nodes = [n for node in _concerned(tree, name.partition(".")[0]) for n in ast.walk(node)]
    found = [n.value for n in nodes if isinstance(n, ast.Constant)]
    texts = [number for text in found if isinstance(text, str) for number in in_source(text.encode())]
    return sorted_out([n for n in found if isinstance(n, (int, float)) and not isinstance(n, bool)] + texts)


def _concerned(tree: ast.Module, name: str) -> Iterator[ast.AST]:
    """What a name of a file stands for, and what that names in turn; all of it where nothing has that name."""
    defined: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for known in _names(statement):
            defined.setdefault(known, []).append(statement)
    if name not in defined:
        yield tree
        return
    waiting, seen = [name], {name}
    while waiting:
        for node in defined[waiting.pop()]:
            yield node
            named = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & {*defined}
            waiting += sorted(named - seen)
            seen |= named


def _names(node: ast.stmt) -> list[str]:
    """What a statement of a file gives a name to."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [n.id for t in targets if t is not None for n in ast.walk(t) if isinstance(n, ast.Name)]
