"""What PyTorch's own functions take and return, and whether an override takes the same."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

REQUIRED = inspect.Parameter.empty

# Where a namespace's operators stand among ATen's.
ATEN_PREFIX = {
    "torch": "",
    "torch.Tensor": "",
    "torch.functional": "",
    "torch.nn.functional": "",
    "torch.linalg": "linalg_",
    "torch.special": "special_",
    "torch.fft": "fft_",
    "torch.foreach": "_foreach_",
}


@dataclass(frozen=True)
class Parameter:
    """One argument of a torch function: its name, whether it may be passed by place, its default."""

    name: str
    by_place: bool
    default: Any = REQUIRED


@dataclass(frozen=True)
class Signature:
    """The overloads of one torch function, without `out`, and what each may return."""

    overloads: tuple[tuple[Parameter, ...], ...]
    returns: tuple[tuple[str, ...], ...] = ()
    """One tuple of type names an overload, such as ("Tensor",); empty when it is not known."""

    @property
    def first(self) -> frozenset[str]:
        """The names under which the first argument may be passed by keyword."""
        return frozenset(o[0].name for o in self.overloads if o) | {"input", "self"}

    def places(self) -> list[list[str]]:
        """The names an argument may have at each place, the first included."""
        by_name = {p.name for o in self.overloads for p in o if not p.by_place}
        columns: list[list[str]] = []
        for overload in self.overloads:
            positional = [p.name for p in overload if p.by_place and p.name not in by_name]
            for i, name in enumerate(positional):
                if i == len(columns):
                    columns.append([])
                if name not in columns[i]:
                    columns[i].append(name)
        return columns

    def named(self) -> dict[str, Any]:
        """Every argument but the first, with its default; REQUIRED where every overload requires it."""
        found: dict[str, Any] = {}
        for overload in self.overloads:
            for p in overload[1:]:
                if found.get(p.name, REQUIRED) is REQUIRED:
                    found[p.name] = p.default
        for name, default in found.items():
            somewhere_absent = any(all(p.name != name for p in o) for o in self.overloads)
            if default is REQUIRED and somewhere_absent:
                found[name] = None
        return found

    def __str__(self) -> str:
        """As an override would write it: `(input, other, *, alpha=1)`."""
        named = self.named()
        shown = [next((o[0].name for o in self.overloads if o), "input")]
        placed = list(dict.fromkeys(name for column in self.places()[1:] for name in column if name in named))
        optional = False
        for name in placed:
            optional = optional or named[name] is not REQUIRED
            default = None if named[name] is REQUIRED else named[name]
            shown.append(f"{name}={default!r}" if optional else name)
        rest = [name for name in named if name not in placed]
        if rest:
            shown.append("*")
        shown += [name if named[name] is REQUIRED else f"{name}={named[name]!r}" for name in rest]
        return f"({', '.join(shown)})"


def dotted(function: Any) -> str:
    """The name a user would type: `torch.add`, `torch.Tensor.add_`, `torch.linalg.inv`.

    >>> dotted(torch.add), dotted(torch.Tensor.T.__get__)
    ('torch.add', 'torch.Tensor.T')
    """
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"torch.ops.{function}"
    if torch.compiler.is_compiling():  # PyTorch's record of names cannot be read while a graph is traced
        return str(getattr(function, "__name__", "a torch function"))
    return _on_record(function)


@functools.cache
def _on_record(function: Any) -> str:
    name = torch.overrides.resolve_name(function)
    if name is None:
        parts = (getattr(function, "__module__", None), getattr(function, "__qualname__", None))
        return ".".join(filter(None, parts)) or repr(function)
    # torch.norm and its neighbours are defined in torch.functional, where nobody calls them.
    namespace, _, last = name.removesuffix(".__get__").replace("torch.functional.", "torch.").rpartition(".")
    # Of several names for one object, the last in the alphabet is on record: torch.spmm for torch.mm.
    own = getattr(function, "__name__", last)
    holder = {"torch": torch, "torch.Tensor": torch.Tensor}.get(namespace)
    return f"{namespace}.{own if getattr(holder, own, None) is function else last}"


def is_getter(function: Any) -> bool:
    """Whether PyTorch's function stands behind a property, as torch.Tensor.T.__get__ behind x.T."""
    return getattr(function, "__name__", None) == "__get__"


@functools.cache
def learn(function: Callable[..., Any]) -> Signature | None:
    """What PyTorch's `function` takes; None where PyTorch does not say.

    Builtins have no `inspect.signature`; their ATen schemas know every keyword.

    >>> str(learn(torch.add))
    '(input, other, *, alpha=1)'
    """
    found = _written(function)
    # What PyTorch wraps in Python may take and return other things than the ATen operator of that name.
    if found is None and not inspect.isfunction(function):
        found = _schemas(function)
    if found is None:
        stand_in = torch.overrides.get_testing_overrides().get(function)
        found = None if stand_in is None else _written(stand_in)
    return found


def _written(function: Callable[..., Any]) -> Signature | None:
    """From `inspect.signature`, for functions that PyTorch writes in Python."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    parameters = [p for p in signature.parameters.values() if p.name != "out"]
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return None
    overload = tuple(Parameter(p.name, p.kind is not p.KEYWORD_ONLY, p.default) for p in parameters)
    tensor = signature.return_annotation in (torch.Tensor, "Tensor", "torch.Tensor")
    return Signature((overload,), (("Tensor",),) if tensor else ())


def _schemas(function: Callable[..., Any]) -> Signature | None:
    """From the ATen schemas of that name that take a tensor."""
    name = aten_name(function)
    overloads, returns = [], []
    for schema in [] if name is None else torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        kinds = [str(a.type) for a in schema.arguments]
        if schema.overload_name.startswith("prim_") or not any("Tensor" in kind for kind in kinds):
            continue
        arguments = [a for a in schema.arguments if not a.is_out]
        overload = tuple(
            # Python calls ATen's self `input`.
            Parameter(
                "input" if a.name == "self" else a.name,
                not a.kwarg_only,
                a.default_value if a.has_default_value() else REQUIRED,
            )
            for a in arguments
        )
        if overload in overloads or "Dimname" in str(schema):
            continue
        overloads.append(overload)
        returns.append(tuple(str(r.type) for r in schema.returns))
    if not overloads:
        return None
    return Signature(tuple(overloads), tuple(dict.fromkeys(returns)))


def aten_name(function: Callable[..., Any]) -> str | None:
    """The ATen operator behind a torch function: `linalg_inv` for torch.linalg.inv."""
    namespace, _, name = dotted(function).rpartition(".")
    if namespace not in ATEN_PREFIX:
        return None
    # PyTorch names Tensor.pow after the operator that shares its code.
    name = {"__pow__": "pow", "__ipow__": "pow_"}.get(name, name)
    return ATEN_PREFIX[namespace] + name


def compare(override: Callable[..., Any], function: Callable[..., Any], owner: str) -> None:
    """Raise TypeError unless `override` can be called in every way in which `function` can."""
    wanted = learn(function)
    if wanted is None:
        return
    fault = _fault(inspect.signature(override), wanted, function)
    if fault is not None:
        name = getattr(override, "__name__", repr(override))
        raise TypeError(
            f"implements: the override of {dotted(function)} for {owner} {fault}; write def {name}{wanted}: "
            f"(in-place and out= forms need nothing more)"
        )


def _fault(given: inspect.Signature, wanted: Signature, function: Callable[..., Any]) -> str | None:
    parameters = list(given.parameters.values())
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters)
    any_place = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = {p.name: p for p in by_name if p not in placed[:1]}
    named = wanted.named()
    if is_getter(function):  # PyTorch passes the tensor alone
        named = {}
    if not placed and not any_place:
        return "takes no argument by place"
    missing = [name for name in named if name not in names]
    if missing and not any_name:
        return f"does not take {_and(missing)}"
    for i, column in enumerate(wanted.places()[1:] if named else [], start=1):
        if i < len(placed):
            if placed[i].name not in column:
                return f"has {placed[i].name} in place {i + 1}, where {dotted(function)} has {_and(column)}"
        elif not any_place:
            return f"does not take {_and(column)} by place"
    for name, p in names.items():
        default = named.get(name)
        if p.default is REQUIRED and (name not in named or default is not REQUIRED):
            return f"needs a default for {name}, which {dotted(function)} does not demand"
        # None is how an override says "not given".
        if name in named and isinstance(p.default, (bool, int, float, str)) and p.default != default:
            return f"has the default {name}={p.default!r}, where {dotted(function)} has {name}={default!r}"
    return None


def returned_wrong(result: Any, signature: Signature | None) -> str | None:
    """What PyTorch's function would have returned, when `result` is nothing of the kind."""
    kinds = signature.returns if signature is not None else ()
    if not kinds or any(_fits(result, kind) for kind in kinds):
        return None
    return " or ".join(dict.fromkeys(_describe(kind) for kind in kinds))


def _fits(result: Any, kind: tuple[str, ...]) -> bool:
    if len(kind) == 0:
        return result is None
    if len(kind) > 1:
        return (
            isinstance(result, (tuple, list))
            and len(result) == len(kind)
            and all(_fits(r, (k,)) for r, k in zip(result, kind, strict=True))
        )
    if kind[0] == "Tensor":
        return bool(torch.overrides.is_tensor_like(result))
    if kind[0] == "List[Tensor]":
        return isinstance(result, (tuple, list)) and all(map(torch.overrides.is_tensor_like, result))
    if kind[0] == "bool":
        return isinstance(result, bool)
    if kind[0] in ("int", "float", "number"):
        return isinstance(result, (numbers.Number, torch.SymInt, torch.SymFloat))
    return True


def _describe(kind: tuple[str, ...]) -> str:
    if len(kind) > 1:
        return f"a tuple of {len(kind)} ({', '.join(kind)})"
    word = {"Tensor": "a Tensor", "List[Tensor]": "a list of Tensors", "bool": "a bool", "int": "an int"}
    return word.get(kind[0], kind[0]) if kind else "None"


def _and(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
