"""`TensorLike`: the base of types that torch functions accept without being Tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from opwright.tensors.fallback import OWN_MEMORY, Fallback, fall_back
from opwright.tensors.operators import Operators
from opwright.tensors.override import Override, overrides, require_overridable, run
from opwright.tensors.protocol import ask, conflict

F = TypeVar("F", bound=Callable[..., Any])


class TensorLike(Operators):
    """A type that torch functions accept: own implementations for some, the chosen fallback for the rest.

    A subclass has `shape`, `dtype` and `device`, and `dense()` where it falls back to it. It chooses

    - `fallback="error"` (a function without an override is a TypeError) or `"dense"` (convert, call),
    - `warn=True`: a DenseWarning at each place where it turns dense, once,
    - `knows=(Other, …)`: unrelated tensor-like types that its overrides take; Tensors it always takes,
    - `dense_limit`: the bytes above which the fallback refuses to convert.

    >>> class Diagonal(TensorLike, fallback="dense"):
    ...     def __init__(self, values):
    ...         self.values, self.shape = values, torch.Size((len(values), len(values)))
    ...         self.dtype, self.device = values.dtype, values.device
    ...     def dense(self):
    ...         return torch.diag(self.values)
    >>> @Diagonal.implements(torch.trace)
    ... def _(input):
    ...     return input.values.sum()
    >>> x = Diagonal(torch.tensor([1.0, 2.0]))
    >>> torch.trace(x), x.trace(), torch.sum(x, dim=0)
    (tensor(3.), tensor(3.), tensor([1., 2.]))
    """

    fallback: ClassVar[Fallback] = "error"
    """What a function without an override does."""
    warn: ClassVar[bool] = False
    """Whether turning dense warns."""
    knows: ClassVar[tuple[type, ...]] = ()
    """Unrelated types that its overrides take."""
    dense_limit: ClassVar[int] = 4 * 2**30
    """The bytes above which the fallback refuses."""
    _own: ClassVar[dict[Any, Override]] = {}
    _overrides: ClassVar[dict[Any, Override]] = {}

    def __init_subclass__(
        cls,
        *,
        fallback: Fallback | None = None,
        warn: bool | None = None,
        knows: Sequence[type] | type | None = None,
        dense_limit: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if fallback not in (None, "dense", "error"):
            raise ValueError(f"{cls.__name__}: fallback must be 'dense' or 'error', got {fallback!r}")
        chosen = {"fallback": fallback, "warn": warn, "dense_limit": dense_limit}
        for name, value in chosen.items():
            if value is not None:
                setattr(cls, name, value)
        if knows is not None:
            known = (knows,) if isinstance(knows, type) else tuple(knows)
            if not all(isinstance(t, type) for t in known):
                raise TypeError(f"{cls.__name__}: knows must be types, got {known!r}")
            cls.knows = known
        if cls.fallback == "dense" and cls.dense is Operators.dense:
            raise TypeError(f"{cls.__name__}: fallback='dense' needs a method dense(self) that returns a Tensor")
        cls._own = {}
        cls._inherit()

    @classmethod
    def _inherit(cls) -> None:
        """Gather own and inherited overrides in one table, here and in every subclass."""
        cls._overrides = {k: v for base in reversed(cls.__mro__) for k, v in vars(base).get("_own", {}).items()}
        for sub in cls.__subclasses__():
            sub._inherit()

    @classmethod
    def implements(cls, *functions: Callable[..., Any]) -> Callable[[F], F]:
        """Register an override of PyTorch's `functions`, and of every spelling of them, for this type.

        The override takes PyTorch's own arguments under PyTorch's own names; a missing one is a TypeError here
        and now. The method, the operator, the in-place form and `out=` follow from it (an override may take
        `out` itself). It returns NotImplemented for arguments it does not cover: then the fallback applies.

        >>> class Zero(TensorLike):
        ...     pass
        >>> @Zero.implements(torch.add)
        ... def _(input, other):
        ...     return other
        Traceback (most recent call last):
        TypeError: implements: the override of torch.add for Zero does not take alpha; write def _(input, other, *, \
alpha=1): (in-place and out= forms need nothing more)
        """
        if not functions:
            raise TypeError(f"{cls.__name__}.implements: needs a torch function, as in .implements(torch.add)")
        for function in functions:
            require_overridable(function, cls)

        def register(override: F) -> F:
            found = [o for function in functions for o in overrides(function, override, cls)]
            cls._own.update((o.spelling.key, o) for o in found)
            cls._inherit()
            return override

        return register

    @classmethod
    def override_of(cls, function: Any) -> Override | None:
        """The override that serves `function`, own or inherited; None when the fallback would."""
        found = cls._overrides.get(function)
        if found is None and isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            packet: Any = getattr(function, "overloadpacket", function)
            found = cls._overrides.get(packet._qualified_op_name)
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        strangers = [t for t in types if not cls._takes(t)]
        if strangers:
            # Whoever is asked after us may know us; the last one asked says what is the matter.
            if list(types)[-1] is cls:
                raise TypeError(conflict(func, types))
            return NotImplemented
        override = cls.override_of(func)
        result = NotImplemented if override is None else run(override, args, kwargs)
        if result is NotImplemented:
            return fall_back(cls, func, args, kwargs, declined=override is not None)
        return result

    @classmethod
    def _takes(cls, other: type) -> bool:
        return issubclass(cls, other) or issubclass(other, Tensor) or issubclass(other, cls.knows)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "device"):
            raise AttributeError(f"{type(self).__name__}: a tensor-like type sets {name} or defines it as a property")
        attribute = None if name.startswith("_") or name in OWN_MEMORY else getattr(torch.Tensor, name, None)
        if attribute is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return partial(ask, attribute, self) if callable(attribute) else ask(attribute.__get__, self)

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{type(self).__name__}(shape={tuple(self.shape)}, dtype={dtype}, device={self.device})"

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension."""
        return torch.Size(self.shape) if dim is None else torch.Size(self.shape)[dim]

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of elements of the dense form."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def is_cuda(self) -> bool:
        """Whether it is on a CUDA device."""
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Whether it is on the CPU."""
        return self.device.type == "cpu"

    def is_floating_point(self) -> bool:
        """Whether its elements are real floating-point numbers."""
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        """Whether its elements are complex."""
        return self.dtype.is_complex


@TensorLike.implements(torch.numel)
def _numel(input: TensorLike) -> int:
    return input.numel()


@TensorLike.implements(torch.is_floating_point)
def _is_floating_point(input: TensorLike) -> bool:
    return input.is_floating_point()


@TensorLike.implements(torch.is_complex)
def _is_complex(input: TensorLike) -> bool:
    return input.is_complex()


@TensorLike.implements(torch.Tensor.__len__)
def _len(self: TensorLike) -> int:
    if not self.shape:
        raise TypeError(f"len: a {type(self).__name__} without dimensions has no length")
    return self.shape[0]
