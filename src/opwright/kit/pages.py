"""The reference page of an operator, made from the operator."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opwright.kit.op import Op


def page(op: Op[..., Any]) -> str:
    """The operator's page in Markdown.

    >>> import opwright as ow
    >>> print(page(ow.cube).splitlines()[0])
    # cube
    """
    pieces = [f"# {op.name}", _docstring(op)]
    pieces.append(f"```text\n{op.qualname.replace('::', '.')}\n{op.schema}\n```")
    if op.has_rung:
        pieces.append(_gradient(op))
    elif any(p.mutated for p in op.signature.parameters):
        written = ", ".join(f"`{p.name}`" for p in op.signature.parameters if p.mutated)
        pieces.append(f"## Gradient\n\nWrites to {written}; autograd records what the reference does.")
    pieces.append(f"## Reference\n\n```text\n{_source(op)}\n```")
    return "\n\n".join(pieces) + "\n"


def write_all(operators: Sequence[Op[..., Any]], folder: Path) -> list[Path]:
    """Write every operator's page and an index of them."""
    written = []
    for op in operators:
        file = folder / f"{op.name}.md"
        file.write_text(page(op), encoding="utf-8")
        written.append(file)
    rows = [f"| [{op.name}]({op.name}.md) | {_first_line(op)} |" for op in operators]
    index = folder / "README.md"
    index.write_text("\n".join(["# Operators", "", "| operator | |", "|---|---|", *rows]) + "\n", encoding="utf-8")
    return [*written, index]


def _first_line(op: Op[..., Any]) -> str:
    return (op.__doc__ or "").strip().partition("\n")[0]


def _docstring(op: Op[..., Any]) -> str:
    text = inspect.cleandoc(op.__doc__ or "")
    head, _, example = text.partition(">>> ")
    if example:
        return f"{head.rstrip()}\n\n```pycon\n>>> {example.rstrip()}\n```"
    return head


def _gradient(op: Op[..., Any]) -> str:
    rung = op.derivation
    how = "Declared by its author" if op.has_declared_gradient else "Derived from the reference"
    kept = [f"`{name}`" + (" (its shape alone)" if rung.signature.names[name].like else "") for name in rung.inputs]
    kept += [f"`{name}`" for name in rung.outputs]
    schema = op.backward.schema
    return f"## Gradient\n\n{how}; it keeps {', '.join(kept)}.\n\n```text\n{schema}\n```"


def _source(op: Op[..., Any]) -> str:
    if op.signature.returns_input and "in_place" in op.reference.__qualname__:
        return f"{op.signature.returns_input}.copy_({op.name.removesuffix('_')}(…))"
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(op.reference))).strip()
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.FunctionDef)
    if ast.get_docstring(body) is None:
        return source
    lines = source.splitlines()  # the page has shown the docstring already
    return "\n".join(lines[: body.body[0].lineno - 1] + lines[body.body[0].end_lineno :])
