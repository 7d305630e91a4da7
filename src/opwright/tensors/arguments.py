"""Arguments to try a torch function with: guessed from its schema, proved by calling it on a dense matrix."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from opwright.tensors.signature import aten_name

HERE = object()
"""Stands where the tensor under test goes."""

Guess = tuple[list[Any], dict[str, Any]]

# Tries a function, and candidates an argument, at most.
_TRIES = 48

# Values by what a schema or an annotation calls the type; the likeliest first.
_BY_TYPE: dict[str, list[Any]] = {
    "Tensor": ["square", HERE, "scalar", "index", "indices", "vector", "mask", "image"],
    "List[Tensor]": [[HERE, HERE], [HERE]],
    "int": [0, 1, 2],
    "SymInt": [0, 1, 2],
    "float": [0.5, 1.0],
    "number": [2, 0.5],
    "bool": [False, True],
    "List[int]": [[0, 1], [3, 3], [0], [1, 1], [1]],
    "List[float]": [[0.5]],
    "str": ["mean", "reflect", "constant", "ij->ji", "L", "linear"],
    "Device": [torch.device("cpu")],
    "ScalarType": [torch.float64],
}
# Where neither says, as in torch.nn.functional without annotations.
_ANY: list[Any] = ["square", HERE, 2, 0, 1, "index", [3, 3], 0.5, "vector", [HERE, HERE]]
_BY_NAME: dict[str, list[Any]] = {
    "dtype": [torch.float64],
    "device": [torch.device("cpu")],
    "size": [[3, 3], [9], [1, 3, 3]],
    "shape": [[3, 3], [9]],
    "equation": ["ij->ji", "ij,jk->ik"],
    "format_spec": [""],
    "memo": [{}],
    "proto": [2],
    "kernel_size": [1, 2],
    "func": [abs],
}
# Functions that demand one of several optional arguments.
_OPTIONAL: dict[str, dict[str, Any]] = {n: {"min": 0.25} for n in ("clamp", "clamp_", "clip", "clip_")}


def guesses(function: Callable[..., Any], bound: bool) -> Iterator[Guess]:
    """Positional arguments and keywords, HERE among them; a method's (`bound`) first is HERE.

    >>> next(guesses(torch.add, bound=False)) == ([HERE, HERE], {})
    True
    """
    seen: list[Guess] = []
    for columns in _columns(function, bound):
        for values in itertools.islice(_products(columns), _TRIES):
            args = [v for name, v in values if name is None]
            guess = (args, {name: v for name, v in values if name is not None})
            if guess not in seen and _has_here(guess):
                seen.append(guess)
                yield guess


def fill(value: Any, here: Any, dense: torch.Tensor) -> Any:
    """A guess with fresh tensors in it, and `here` at its place."""
    if value is HERE:
        return here
    if isinstance(value, list):
        return [fill(v, here, dense) for v in value]
    if isinstance(value, dict):
        return {k: fill(v, here, dense) for k, v in value.items()}
    make = _TENSORS.get(value) if isinstance(value, str) else None
    return value if make is None else make(dense)


# Named in the tables above; each makes a new tensor, since the call may write to it.
_TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "square": lambda d: torch.eye(len(d), dtype=d.dtype) + 0.5,
    "vector": lambda d: torch.linspace(0.1, 0.9, len(d), dtype=d.dtype),
    "index": lambda d: torch.arange(len(d)),
    "indices": lambda d: torch.zeros(tuple(d.shape), dtype=torch.long),
    "mask": lambda d: torch.eye(len(d), dtype=torch.bool),
    "scalar": lambda d: torch.tensor(2, dtype=d.dtype),
    "image": lambda d: torch.ones(1, 1, 2, 2, dtype=d.dtype),
}

Column = tuple[str | None, list[Any]]


def _columns(function: Callable[..., Any], bound: bool) -> Iterator[list[Column]]:
    """For each overload, its required arguments: by place, with the values worth trying."""
    name = aten_name(function)
    found = False
    for schema in [] if name is None else torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        arguments = [a for a in schema.arguments if not a.is_out and not a.has_default_value()]
        kinds = [_plain(str(a.type)) for a in arguments]
        if not any("Tensor" in kind for kind in kinds):
            continue
        found = True
        columns: list[Column] = []
        for a, kind in zip(arguments, kinds, strict=True):
            values = _BY_NAME.get(a.name, _BY_TYPE.get(kind, [None]))
            columns.append((a.name if a.kwarg_only else None, values))
        columns += [(key, [value]) for key, value in _OPTIONAL.get(name or "", {}).items()]
        yield _with_here(columns, kinds, bound)
    if not found or inspect.isfunction(function):
        yield from _written(function, bound)


def _written(function: Callable[..., Any], bound: bool) -> Iterator[list[Column]]:
    for source in (function, torch.overrides.get_testing_overrides().get(function)):
        try:
            parameters = list(inspect.signature(source).parameters.values())  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
        required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
        columns: list[Column] = []
        kinds = []
        for p in required:
            kind = _annotated(p)
            kinds.append(kind)
            values = _BY_NAME.get(p.name, _BY_TYPE.get(kind, _ANY))
            columns.append((p.name if p.kind is p.KEYWORD_ONLY else None, values))
        if columns:
            yield _with_here(columns, kinds, bound)
    yield [(None, [HERE])]
    yield [(None, [HERE]), (None, _ANY)]


def _with_here(columns: list[Column], kinds: list[str], bound: bool) -> list[Column]:
    """Fix the first tensor argument as the one under test, and let the next be of its type first."""
    tensors = [i for i, kind in enumerate(kinds) if kind == "Tensor"]
    first = 0 if bound or not tensors else tensors[0]
    lists = _BY_TYPE["List[Tensor]"]
    fixed = [(name, lists if values is lists else [HERE]) for name, values in columns[first : first + 1]]
    rest = columns[first + 1 :]
    if rest and rest[0][1] is _BY_TYPE["Tensor"]:
        rest = [(rest[0][0], [HERE, "scalar", *(v for v in rest[0][1] if v not in (HERE, "scalar"))]), *rest[1:]]
    return columns[:first] + fixed + rest


def _products(columns: list[Column]) -> Iterator[list[tuple[str | None, Any]]]:
    names = [name for name, _ in columns]
    for values in itertools.product(*(values for _, values in columns)):
        yield list(zip(names, values, strict=True))


def _plain(kind: str) -> str:
    return kind.removeprefix("Optional[").removesuffix("]") if kind.startswith("Optional[") else kind


def _annotated(p: inspect.Parameter) -> str:
    text = str(p.annotation)
    for word, kind in (("List[Tensor", "List[Tensor]"), ("Tensor", "Tensor"), ("BroadcastingList", "int")):
        if word in text:
            return kind
    return {"<class 'int'>": "int", "<class 'float'>": "float", "<class 'bool'>": "bool", "<class 'str'>": "str"}.get(
        text, "Tensor" if p.name in ("input", "self", "tensor", "A", "x") else ""
    )


def _has_here(guess: Guess) -> bool:
    args, kwargs = guess
    return any(v is HERE or (isinstance(v, list) and HERE in v) for v in [*args, *kwargs.values()])
