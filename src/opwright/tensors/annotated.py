"""`Annotated`: a Tensor with a metadata mapping that operations carry along."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch._compile import _disable_dynamo

from opwright.tensors.carrier import Carrier
from opwright.tensors.protocol import leaves
from opwright.tensors.signature import dotted

Merge = Literal["first", "union", "equal"]


class Annotated(Carrier):
    """A tensor with metadata that survives operations, views, indexing, autograd, collation and torch.save.

    What an operation returns carries the metadata of what it was given. For operations on several, a subclass
    chooses the rule:

    - `merge="first"`: that of the first argument that has any,
    - `merge="union"` (unless chosen): all keys; where two have one key, the first argument's value,
    - `merge="equal"`: it must be equal, else ValueError.

    A result written in place keeps the metadata of the tensor written to; `out=` takes the operation's.

    >>> x = Annotated(torch.ones(3), unit="m")
    >>> (2 * x)[:2]
    Annotated(tensor([2., 2.]), unit='m')
    >>> class Measured(Annotated, merge="equal"):
    ...     pass
    >>> Measured(torch.ones(1), unit="m") + Measured(torch.ones(1), unit="s")
    Traceback (most recent call last):
    ValueError: torch.Tensor.add: the metadata of its arguments must be equal, got unit='m' and unit='s'; give them \
the same with .annotated(), or choose another merge rule
    """

    merge: ClassVar[Merge] = "union"
    _metadata: dict[str, Any]

    def __init_subclass__(cls, *, merge: Merge | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if merge not in (None, "first", "union", "equal"):
            raise ValueError(f"{cls.__name__}: merge must be 'first', 'union' or 'equal', got {merge!r}")
        if merge is not None:
            cls.merge = merge

    # `tensor` by place alone, so that metadata may have any name.
    @staticmethod
    def __new__(cls: type[Annotated], tensor: Any, /, **metadata: Any) -> Annotated:
        made = cls._made_of(tensor)
        made._metadata = {**getattr(tensor, "_metadata", {}), **metadata}
        return made

    # Tensor has no __init__ of its own that would take the metadata.
    def __init__(self, tensor: Any, /, **metadata: Any) -> None:
        super().__init__()

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata, to be read; `annotated` makes a tensor with other metadata."""
        return MappingProxyType(getattr(self, "_metadata", {}))

    def annotated(self, **metadata: Any) -> Annotated:
        """The same tensor (its memory is shared) with `metadata` added or replaced.

        >>> Annotated(torch.ones(1), unit="m").annotated(unit="km", source="gps").metadata["unit"]
        'km'
        """
        return type(self)(self, **metadata)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return _graph_break_because_graphs_hold_no_metadata(cls, func, types, args, kwargs)
        return cls._carry(func, types, args, {} if kwargs is None else kwargs)

    @classmethod
    def _carry(cls, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        out = list(leaves(kwargs.get("out")))
        read = [v for v in leaves((args, {k: v for k, v in kwargs.items() if k != "out"})) if isinstance(v, Annotated)]
        merged = _merged(cls.merge, func, read)  # before the call, which may write
        result = super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        for value in leaves(result):
            if isinstance(value, Annotated) and (not hasattr(value, "_metadata") or any(value is o for o in out)):
                value._metadata = dict(merged)
        return result

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        metadata = "".join(f", {k}={v!r}" for k, v in self.metadata.items())
        return f"{type(self).__name__}({self._spelled()}{metadata})"


# The name is what torch.compile shows where it leaves the graph; to stay in one, give it x.plain().
# torch.compiler.disable would do the same, and load the compiler with this module.
@_disable_dynamo
def _graph_break_because_graphs_hold_no_metadata(
    cls: type[Annotated], func: Any, types: Any, args: Any, kwargs: Any
) -> Any:
    return cls._carry(func, types, args, {} if kwargs is None else kwargs)


def _merged(rule: Merge, function: Callable[..., Any], values: list[Annotated]) -> Mapping[str, Any]:
    if not values:
        return {}
    found = [getattr(v, "_metadata", {}) for v in values]
    if rule == "first":
        return found[0]
    if rule == "union":
        union: dict[str, Any] = {}
        for metadata in found:
            union = {**union, **{k: v for k, v in metadata.items() if k not in union}}
        return union
    for other in found[1:]:
        differ = [k for k in {**found[0], **other} if not _equal_at(k, found[0], other)]
        if differ:
            ours, theirs = (_shown(metadata, differ) for metadata in (found[0], other))
            raise ValueError(
                f"{dotted(function)}: the metadata of its arguments must be equal, got {ours} and {theirs}; give them "
                f"the same with .annotated(), or choose another merge rule"
            )
    return found[0]


def _equal_at(key: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return key in one and key in other and _equal(one[key], other[key])


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are equal, tensors and arrays as a whole."""
    if one is other:
        return True
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        alike = (one.dtype, one.device, one.shape) == (other.dtype, other.device, other.shape)
        return alike and torch.equal(one, other)
    if isinstance(one, (list, tuple)) and isinstance(other, type(one)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(v, other[k]) for k, v in one.items())
    equal = one == other
    return bool(equal.all()) if getattr(equal, "shape", ()) else bool(equal)


def _shown(metadata: Mapping[str, Any], keys: list[str]) -> str:
    return ", ".join(f"{k}={metadata[k]!r}" for k in keys if k in metadata) or "none"
