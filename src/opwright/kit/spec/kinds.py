"""The kinds of values that operators take: how a schema spells each, and which Python values it accepts."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import torch
from torch import Tensor

Number = int | float | complex
"""A Python number of any kind. Unlike `float` it keeps PyTorch's type promotion: an int stays an int."""


Like = Annotated[Tensor, "only its shape, dtype and device"]
"""Annotates a parameter of a gradient that needs a tensor's shape, dtype and device but not its values. What
arrives is a tensor whose elements share one place in memory, so keeping it costs nothing."""


@dataclass(frozen=True)
class Kind:
    """One kind of argument: how the schema spells it, which values it takes, how they cross the dispatcher."""

    schema: str
    says: str
    """What messages call it: "a Tensor"."""
    fast: str
    """A Python expression over `{v}` that is true for values that need no conversion; it runs on every call."""
    convert: Callable[[Any], Any]
    """Called when `fast` is false: the value as the reference wants it, or TypeError."""
    encode: Callable[[Any], Any] | None = None
    """The value as the dispatcher wants it, where that differs (an enum's name)."""
    words: tuple[str, ...] = ()
    """What a text may be as it crosses the dispatcher; empty: anything."""

    @property
    def is_tensor(self) -> bool:
        return self.schema.startswith("Tensor")

    @property
    def is_number(self) -> bool:
        """Whether it is a number of any kind, or None, or a list of such: what built kernels take as double."""
        return self.schema in ("Scalar", "Scalar?", "Scalar[]", "Scalar[]?")

    @property
    def is_list(self) -> bool:
        return "[]" in self.schema

    @property
    def is_optional(self) -> bool:
        return self.schema.endswith("?")


def _tensor(value: Any) -> Any:
    # Tensor-like types take part through the torch functions that the reference calls.
    if isinstance(value, Tensor) or hasattr(type(value), "__torch_function__"):
        return value
    raise TypeError


def _number_to(kind: type, symbol: type, narrower: tuple[type, ...]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, symbol):
            return value
        if isinstance(value, Tensor) or hasattr(type(value), "__torch_function__"):
            # The dispatcher would take the value and drop the gradient.
            raise TypeError
        if isinstance(value, (kind, *narrower)) or hasattr(value, "__float__" if kind is float else "__index__"):
            return kind(value)
        raise TypeError

    return convert


_to_float = _number_to(float, torch.SymFloat, (int, bool, torch.SymInt))
_to_int = _number_to(int, torch.SymInt, (bool,))


def _to_bool(value: Any) -> Any:
    if isinstance(value, (bool, torch.SymBool)) or type(value).__name__ in ("bool_", "bool"):
        return value if isinstance(value, torch.SymBool) else bool(value)
    raise TypeError


def _to_complex(value: Any) -> Any:
    if isinstance(value, (int, float, complex)):
        return complex(value)
    raise TypeError


def _to_number(value: Any) -> Any:
    if isinstance(value, (bool, int, float, complex, torch.SymInt, torch.SymFloat)):
        return value
    if not isinstance(value, Tensor) and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()  # a NumPy scalar
    raise TypeError


def _to_device(value: Any) -> Any:
    if isinstance(value, (str, int, torch.device)) and not isinstance(value, bool):
        return torch.device(value)
    raise TypeError


def _instance(kind: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        raise TypeError

    return convert


TENSOR = Kind("Tensor", "a Tensor", "isinstance({v}, ow__Tensor)", _tensor)
BASIC: dict[Any, Kind] = {
    Tensor: TENSOR,
    torch.nn.Parameter: TENSOR,
    float: Kind("float", "a float", "type({v}) is float", _to_float),
    int: Kind("SymInt", "an int", "type({v}) is int", _to_int),
    bool: Kind("bool", "a bool", "{v} is True or {v} is False", _to_bool),
    complex: Kind("complex", "a complex number", "type({v}) is complex", _to_complex),
    str: Kind("str", "a str", "type({v}) is str", _instance(str)),
    torch.dtype: Kind("ScalarType", "a torch.dtype", "isinstance({v}, ow__dtype)", _instance(torch.dtype)),
    torch.device: Kind("Device", "a torch.device", "isinstance({v}, ow__device)", _to_device),
    torch.layout: Kind("Layout", "a torch.layout", "False", _instance(torch.layout)),
    torch.memory_format: Kind("MemoryFormat", "a torch.memory_format", "False", _instance(torch.memory_format)),
    torch.Generator: Kind("Generator", "a torch.Generator", "False", _instance(torch.Generator)),
}
OPTIONAL_TENSOR = replace(TENSOR, schema="Tensor?", says="a Tensor or None", fast=f"{{v}} is None or {TENSOR.fast}")
NUMBER = Kind("Scalar", "a number", "type({v}) in ow__numbers", _to_number)
FAST_NAMES: dict[str, Any] = {
    "ow__Tensor": Tensor,
    "ow__dtype": torch.dtype,
    "ow__device": torch.device,
    "ow__numbers": frozenset((bool, int, float, complex)),
}


def _optional(kind: Kind) -> Kind:
    def encode(value: Any) -> Any:
        return None if value is None or kind.encode is None else kind.encode(value)

    return Kind(
        schema=kind.schema + "?",
        says=kind.says + " or None",
        fast=f"{{v}} is None or ({kind.fast})",
        convert=kind.convert,
        encode=None if kind.encode is None else encode,
        words=kind.words,
    )


def list_of(kind: Kind) -> Kind:
    """The kind of a list of such values; tuples and other sequences are taken as well."""
    plural = kind.says.removeprefix("a ").removeprefix("an ")

    def convert(values: Any) -> Any:
        if isinstance(values, (str, Tensor)) or not isinstance(values, Sequence):
            raise TypeError
        return [kind.convert(v) for v in values]

    return Kind(kind.schema + "[]", f"a list of {plural}s", "False", convert)


def _enum(kind: type[enum.Enum]) -> Kind:
    def convert(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if isinstance(value, str) and value in kind.__members__:
            return kind[value]
        raise TypeError

    def encode(value: Any) -> Any:
        return value.name if isinstance(value, kind) else value

    names = tuple(kind.__members__)
    return Kind("str", f"one of {', '.join(map(str, kind))}", "False", convert, encode, names)


def _flag(kind: type[enum.Flag]) -> Kind:
    """Flags cross the dispatcher as numbers: a combination of them has no name of its own."""

    def convert(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return kind(value)
        raise TypeError

    def encode(value: Any) -> Any:
        return value.value if isinstance(value, kind) else value

    return Kind("int", f"a combination of {', '.join(map(str, kind))}", "False", convert, encode)


def _literal(values: tuple[Any, ...]) -> Kind | None:
    kind = BASIC.get(type(values[0]))
    if kind is None or any(type(v) is not type(values[0]) for v in values):
        return None

    def convert(value: Any) -> Any:
        if isinstance(value, torch.SymInt):
            value = int(value)
        if type(value) is type(values[0]) and value in values:
            return value
        raise TypeError

    words = tuple(v for v in values if isinstance(v, str))
    return Kind(kind.schema, f"one of {', '.join(map(repr, values))}", "False", convert, words=words)


def kind_of(annotation: Any) -> Kind | None:
    """The kind that an annotation stands for, None when there is none.

    >>> kind_of(float).schema, kind_of(list[Tensor]).schema, kind_of(Tensor | None).schema, kind_of(dict)
    ('float', 'Tensor[]', 'Tensor?', None)
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        rest = [a for a in arguments if a is not type(None)]
        if set(rest) <= {int, float, complex, bool} and len(rest) > 1:
            inner: Kind | None = NUMBER
        else:
            inner = kind_of(rest[0]) if len(rest) == 1 else None
        return inner if inner is None or len(rest) == len(arguments) else _optional(inner)
    if origin is Literal:
        return _literal(arguments)
    if origin in (list, Sequence, tuple) and arguments:
        if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
            return None
        item = kind_of(arguments[0])
        return None if item is None or item.is_list or item.is_optional or item.encode else list_of(item)
    if isinstance(annotation, type) and issubclass(annotation, enum.Flag):
        return _flag(annotation)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _enum(annotation)
    held = getattr(annotation, "__opwright_schema__", None) if isinstance(annotation, type) else None
    if held is not None:
        return Kind(held, f"a {annotation.__name__}", "False", _instance(annotation))
    return BASIC.get(annotation)
