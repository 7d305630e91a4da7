"""From a function's annotations to a dispatcher schema, and to the checks of its arguments."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

import torch
from torch import Tensor

from opwright.kit import private
from opwright.kit.spec.kinds import Kind, kind_of

EMPTY = inspect.Parameter.empty


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: Kind
    default: Any = EMPTY
    keyword_only: bool = False
    mutated: bool = False
    differentiable: bool = True
    like: bool = False

    @property
    def has_gradient(self) -> bool:
        return self.kind.is_tensor and self.differentiable and not self.like


@dataclass(frozen=True)
class Output:
    name: str | None
    kind: Kind
    differentiable: bool = True


@dataclass(frozen=True)
class Signature:
    """The parameters and outputs of an operator."""

    parameters: tuple[Parameter, ...]
    outputs: tuple[Output, ...]
    container: Callable[..., Any] | None = None
    """Builds what the function returns from several outputs (a NamedTuple's maker); None for a plain tuple."""
    single: bool = True
    """Whether the function returns its one output bare rather than in a tuple."""
    returns_input: str | None = None
    """The parameter that an in-place operator returns; its schema has no output."""
    names: dict[str, Parameter] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", {p.name: p for p in self.parameters})

    def schema(self, name: str, hidden: str = "") -> str:
        """The operator's schema as the dispatcher reads it; `hidden`: as its built kernels take it, which know
        numbers as double and int64_t alone, and arguments by their place. Their names end in that word, since of
        overloads with equal arguments PyTorch deregisters the wrong one when it ends."""
        pieces, starred = [], False
        for i, p in enumerate(self.parameters):
            if p.keyword_only and not starred and not hidden:
                pieces.append("*")
                starred = True
            spelled = p.kind.schema.replace("Tensor", f"Tensor(a{i}!)", 1) if p.mutated else p.kind.schema
            if hidden:
                spelled = spelled.replace("Scalar", "float") if "ScalarType" not in spelled else spelled
                spelled = spelled.replace("SymInt", "int")
            default = "" if p.default is EMPTY or hidden else f"={_spell_default(p)}"
            pieces.append(f"{spelled} {p.name}{hidden}{default}")
        outs = [o.kind.schema.removesuffix("?") + (f" {o.name}" if o.name else "") for o in self.outputs]
        return f"{name}({', '.join(pieces)}) -> {outs[0] if len(outs) == 1 else '(' + ', '.join(outs) + ')'}"

    def python(self) -> inspect.Signature:
        """As Python's own tools show it."""
        return inspect.Signature(
            [
                inspect.Parameter(
                    p.name,
                    inspect.Parameter.KEYWORD_ONLY if p.keyword_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=p.default,
                )
                for p in self.parameters
            ]
        )

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The value of every parameter in a call, defaults filled in."""
        given = dict(zip((p.name for p in self.parameters), args, strict=False)) | kwargs
        return {
            p.name: given.get(p.name, p.default) for p in self.parameters if p.name in given or p.default is not EMPTY
        }

    def encode(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The positional and keyword arguments for the dispatcher, from the value of every parameter."""
        encoded = {p.name: p.kind.encode(values[p.name]) if p.kind.encode else values[p.name] for p in self.parameters}
        return (
            [encoded[p.name] for p in self.parameters if not p.keyword_only],
            {p.name: encoded[p.name] for p in self.parameters if p.keyword_only},
        )

    @property
    def differentiable_inputs(self) -> tuple[Parameter, ...]:
        """What has a gradient: not what an operator updates beside its outputs, such as running statistics."""
        return tuple(p for p in self.parameters if p.has_gradient and not (p.mutated and not self.returns_input))

    @property
    def differentiable_outputs(self) -> tuple[int, ...]:
        return tuple(i for i, o in enumerate(self.outputs) if o.differentiable and o.kind.is_tensor)


def _spell_default(p: Parameter) -> str:
    value = p.kind.encode(p.default) if p.kind.encode else p.default
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, complex):
        return f"{value.imag}j" if value.real == 0 else "not expressible"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    if isinstance(value, (str, torch.device)):
        return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def expressible(p: Parameter) -> bool:
    """Whether a schema can hold the parameter's default: infinities, lists of strings and such it cannot."""
    if p.default is EMPTY or p.default is None:
        return True
    try:
        private.parse_schema(f"f(*, {p.kind.schema} {p.name}={_spell_default(p)}) -> ()")
    except (RuntimeError, IndexError, ValueError):
        return False
    # The parser may stop early: what it read must be what was meant.
    return not (isinstance(p.default, float) and not math.isfinite(p.default))


# --- reading a function ----------------------------------------------------------------------------------------

TAKES = (
    "torch.Tensor, int, float, bool, complex, ow.Number, str, an Enum, Literal[…], torch.dtype, torch.device, "
    "lists of these, and `… | None`"
)


def read(
    function: Callable[..., Any],
    name: str,
    *,
    mutates: Sequence[str] = (),
    nondifferentiable: Sequence[str | int] = (),
    scope: dict[str, Any] | None = None,
) -> Signature:
    """Read an operator's signature off its reference, or raise TypeError that says how to fix it."""
    signature = inspect.signature(function)
    hints = annotations_of(function, name, scope)
    parameters = tuple(
        _read_parameter(p, hints, name, p.name in mutates, p.name not in nondifferentiable)
        for p in signature.parameters.values()
    )
    known = {p.name for p in parameters}
    for mutated in mutates:
        if mutated not in known:
            raise TypeError(f"{name}: mutates names {mutated!r}, which is not a parameter of {name}")
    if "return" not in hints:
        raise TypeError(f"{name}: annotate what it returns, for example `-> torch.Tensor`")
    in_place = name.endswith("_")
    outputs, container, single = (
        ((), None, False) if in_place else _read_outputs(hints["return"], name, nondifferentiable)
    )
    for entry in nondifferentiable:
        if not (entry in known or entry in [o.name for o in outputs] or entry in range(len(outputs))):
            raise TypeError(f"{name}: nondifferentiable names {entry!r}, neither a parameter nor an output of {name}")
    if in_place:
        return _in_place(parameters, hints["return"], name)
    return Signature(parameters, outputs, container, single)


def annotations_of(function: Callable[..., Any], name: str, scope: dict[str, Any] | None) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, localns=scope)
    except NameError as missing:
        raise TypeError(f"{name}: an annotation names {missing.name!r}, which is not defined here") from None


def _in_place(parameters: tuple[Parameter, ...], returned: Any, name: str) -> Signature:
    written = next((p for p in parameters if p.mutated), None)
    if written is None or returned not in (Tensor, type(None)):
        raise TypeError(
            f"{name}: a name that ends in _ promises to write its first argument in place and to return it: "
            f"let its first parameter be a Tensor and annotate `-> torch.Tensor`, or choose another name"
        )
    return Signature(parameters, (), None, single=False, returns_input=written.name)


def _read_parameter(
    p: inspect.Parameter, hints: dict[str, Any], name: str, mutated: bool, differentiable: bool
) -> Parameter:
    if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
        raise TypeError(f"{name}: *{p.name} has no schema; name each parameter, or take a list")
    if p.name.startswith("ow__") or not p.name.isascii():
        raise TypeError(f"{name}: a parameter cannot be called {p.name!r}; take ASCII letters, digits and _")
    if p.name not in hints:
        raise TypeError(f"{name}: parameter {p.name!r} has no annotation; write for example `{p.name}: torch.Tensor`")
    kind = kind_of(hints[p.name])
    if kind is None:
        raise TypeError(
            f"{name}: parameter {p.name!r} is annotated {_name_of(hints[p.name])}, which no schema can hold; "
            f"operators take {TAKES}"
        )
    default = p.default
    if default is not EMPTY and default is not None:
        try:
            default = kind.convert(default)
        except (TypeError, ValueError):
            raise TypeError(f"{name}: the default of {p.name!r} must be {kind.says}, got {default!r}") from None
    if default is None and not kind.is_optional:
        raise TypeError(f"{name}: {p.name!r} is None by default; annotate it `{_name_of(hints[p.name])} | None`")
    if mutated and kind.schema not in ("Tensor", "Tensor?", "Tensor[]"):
        raise TypeError(f"{name}: {p.name!r} is declared mutated and is not a Tensor")
    parameter = Parameter(p.name, kind, default, p.kind is p.KEYWORD_ONLY, mutated, differentiable)
    if not expressible(parameter):
        raise TypeError(
            f"{name}: the default {default!r} of {p.name!r} cannot be written in a schema; "
            f"annotate it `{_name_of(hints[p.name])} | None`, let it be None, and fill it in inside the function"
        )
    return parameter


def _read_outputs(
    returned: Any, name: str, nondifferentiable: Sequence[str | int]
) -> tuple[tuple[Output, ...], Callable[..., Any] | None, bool]:
    def output(annotation: Any, index: int, label: str | None) -> Output:
        kind = kind_of(annotation)
        if kind is None or not kind.is_tensor or kind.schema == "Tensor[]?":
            number = "; a number has no gradient and no fake value: return a tensor without dimensions, for .item()"
            raise TypeError(
                f"{name}: it returns {_name_of(annotation)}; an operator returns a Tensor, a list of Tensors, "
                f"a tuple or NamedTuple of these, or None when it only updates its arguments"
                f"{number if annotation in (bool, int, float, complex) else ''}"
            )
        return Output(label, kind, index not in nondifferentiable and label not in nondifferentiable)

    if returned in (None, type(None)):
        return (), None, False
    if isinstance(returned, type) and issubclass(returned, tuple) and hasattr(returned, "_fields"):
        hints = typing.get_type_hints(returned)
        outputs = tuple(output(hints.get(f), i, f) for i, f in enumerate(returned._fields))
        make: Callable[..., Any] = returned._make  # type: ignore[attr-defined]
        return outputs, make, False
    if get_origin(returned) is tuple and Ellipsis not in get_args(returned):
        return tuple(output(a, i, None) for i, a in enumerate(get_args(returned))), None, False
    return (output(returned, 0, None),), None, True


def _name_of(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
