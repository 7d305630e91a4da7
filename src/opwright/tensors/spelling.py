"""The spellings of one torch function: function, method, operator, in place, and PyTorch's aliases for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import torch

from opwright.tensors.signature import ATEN_PREFIX, dotted, is_getter, learn

Kind = Literal["plain", "reflected", "in_place"]

# Names under which PyTorch offers one function with one order of arguments. (torch.pinverse and
# torch.nn.functional.softmax are near relatives whose arguments differ.)
ALIASES: tuple[tuple[str, ...], ...] = (
    ("torch.abs", "torch.absolute"),
    ("torch.acos", "torch.arccos"),
    ("torch.acosh", "torch.arccosh"),
    ("torch.asin", "torch.arcsin"),
    ("torch.asinh", "torch.arcsinh"),
    ("torch.atan", "torch.arctan"),
    ("torch.atan2", "torch.arctan2"),
    ("torch.atanh", "torch.arctanh"),
    ("torch.cat", "torch.concat", "torch.concatenate"),
    ("torch.clamp", "torch.clip"),
    ("torch.diagonal", "torch.linalg.diagonal"),
    ("torch.digamma", "torch.special.digamma", "torch.special.psi"),
    ("torch.div", "torch.divide", "torch.true_divide"),
    ("torch.erf", "torch.special.erf"),
    ("torch.erfc", "torch.special.erfc"),
    ("torch.erfinv", "torch.special.erfinv"),
    ("torch.exp2", "torch.special.exp2"),
    ("torch.expm1", "torch.special.expm1"),
    ("torch.ge", "torch.greater_equal"),
    ("torch.gt", "torch.greater"),
    ("torch.i0", "torch.special.i0"),
    ("torch.igamma", "torch.special.gammainc"),
    ("torch.igammac", "torch.special.gammaincc"),
    ("torch.le", "torch.less_equal"),
    ("torch.linalg.det", "torch.det"),
    ("torch.linalg.householder_product", "torch.orgqr"),
    ("torch.linalg.inv", "torch.inverse"),
    ("torch.linalg.matrix_exp", "torch.matrix_exp"),
    ("torch.linalg.matrix_power", "torch.matrix_power"),
    ("torch.linalg.slogdet", "torch.slogdet"),
    ("torch.log1p", "torch.special.log1p"),
    ("torch.logit", "torch.special.logit"),
    ("torch.logsumexp", "torch.special.logsumexp"),
    ("torch.lt", "torch.less"),
    ("torch.matmul", "torch.linalg.matmul"),
    ("torch.movedim", "torch.moveaxis"),
    ("torch.mul", "torch.multiply"),
    ("torch.mvlgamma", "torch.special.multigammaln"),
    ("torch.ne", "torch.not_equal"),
    ("torch.neg", "torch.negative"),
    ("torch.outer", "torch.ger"),
    ("torch.round", "torch.special.round"),
    ("torch.sigmoid", "torch.special.expit"),
    ("torch.sinc", "torch.special.sinc"),
    ("torch.sub", "torch.subtract"),
    ("torch.transpose", "torch.swapaxes", "torch.swapdims"),
    ("torch.trapezoid", "torch.trapz"),
    ("torch.trunc", "torch.fix"),
    ("torch.vstack", "torch.row_stack"),
    ("torch.xlogy", "torch.special.xlogy"),
)

# Python's operators: forward, reflected, in place.
OPERATORS: dict[str, tuple[str, ...]] = {
    "add": ("__add__", "__radd__", "__iadd__"),
    "sub": ("__sub__", "__rsub__", "__isub__"),
    "mul": ("__mul__", "__rmul__", "__imul__"),
    "div": ("__truediv__", "__rtruediv__", "__itruediv__"),
    "floor_divide": ("__floordiv__", "__rfloordiv__", "__ifloordiv__"),
    "remainder": ("__mod__", "__rmod__", "__imod__"),
    "pow": ("__pow__", "__rpow__", "__ipow__"),
    "matmul": ("__matmul__", "__rmatmul__"),
    "bitwise_and": ("__and__", "__rand__", "__iand__"),
    "bitwise_or": ("__or__", "__ror__", "__ior__"),
    "bitwise_xor": ("__xor__", "__rxor__", "__ixor__"),
    "bitwise_left_shift": ("__lshift__", "__rlshift__", "__ilshift__"),
    "bitwise_right_shift": ("__rshift__", "__rrshift__", "__irshift__"),
    "eq": ("__eq__",),
    "ne": ("__ne__",),
    "lt": ("__lt__",),
    "le": ("__le__",),
    "gt": ("__gt__",),
    "ge": ("__ge__",),
    "neg": ("__neg__",),
    "positive": ("__pos__",),
    "abs": ("__abs__",),
    "bitwise_not": ("__invert__",),
}
IN_PLACE_OPERATORS = frozenset(names[2] for names in OPERATORS.values() if len(names) == 3)
_KINDS: tuple[Kind, ...] = ("plain", "reflected", "in_place")
_HOLDERS: dict[str, tuple[Any, ...]] = {
    "torch": (torch, torch.Tensor),
    "torch.linalg": (torch.linalg,),
    "torch.special": (torch.special,),
    "torch.fft": (torch.fft,),
    "torch.nn.functional": (torch.nn.functional,),
}


@dataclass(frozen=True)
class Spelling:
    """One way to call a function: what PyTorch hands over as `func`, and how its arguments stand."""

    key: Any
    """The function object, or `aten::name` for a call through torch.ops."""
    kind: Kind = "plain"
    rename: MappingProxyType[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Keywords of this spelling that the function itself calls otherwise."""


@functools.cache
def spellings(function: Callable[..., Any]) -> tuple[Spelling, ...]:
    """Every spelling of `function`, itself first.

    >>> [dotted(s.key) for s in spellings(torch.inverse) if callable(s.key)]
    ['torch.inverse', 'torch.linalg.inv', 'torch.Tensor.inverse']
    """
    found = {function: Spelling(function)}
    for name in _family(function):
        for spelling in _of(name, function):
            found.setdefault(spelling.key, spelling)
    return tuple(found.values())


def _family(function: Callable[..., Any]) -> tuple[str, ...]:
    """The dotted names that mean `function`; none for a property or for what is not PyTorch's own."""
    namespace, _, name = dotted(function).rpartition(".")
    if namespace == "torch.Tensor":
        namespace = "torch"
        name = next((n for n, dunders in OPERATORS.items() if name == dunders[0]), name)
    if namespace not in _HOLDERS or is_getter(function):
        return ()
    own = f"{namespace}.{name}"
    return next((group for group in ALIASES if own in group), (own,))


def _of(name: str, main: Callable[..., Any]) -> Iterator[Spelling]:
    namespace, _, last = name.rpartition(".")
    in_place = _may_be_in_place(last)
    for holder in _HOLDERS[namespace]:
        if holder is torch.Tensor and not _may_be_method(last):
            continue
        for spelled, kind in ((last, _KINDS[0]), (last + "_", _KINDS[2])):
            function = getattr(holder, spelled, None)
            if callable(function) and (kind == "plain" or in_place):
                yield Spelling(function, kind, _renamed(function, main))
    if namespace == "torch":
        for dunder, kind in zip(OPERATORS.get(last, ()), _KINDS, strict=False):
            function = getattr(torch.Tensor, dunder, None)
            if function is not None:
                yield Spelling(function, kind)
    aten = ATEN_PREFIX[namespace] + last
    yield Spelling(f"aten::{aten}")
    if in_place:
        yield Spelling(f"aten::{aten}_", "in_place")


def _arguments(aten: str) -> list[list[str]]:
    """The names of the arguments of each ATen overload over tensors, without `out`."""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{aten}")
    over_tensors = [s for s in schemas if any("Tensor" in str(a.type) for a in s.arguments)]
    found = [[a.name for a in s.arguments if not a.is_out] for s in over_tensors]
    return [names for names in found if names[0] != "a"]  # TorchScript's own, over lists


def _may_be_method(name: str) -> bool:
    # x.where(c, y) is torch.where(c, x, y): a method whose self stands elsewhere is another function.
    return not any("self" in names[1:] for names in _arguments(name))


def _may_be_in_place(name: str) -> bool:
    # x.normal_(mean, std) is not torch.normal(mean, std) in place.
    plain, in_place = _arguments(name), _arguments(name + "_")
    one_order = len({names[0] for names in plain}) == 1
    return bool(in_place) and one_order and all(names in plain for names in in_place)


def _renamed(function: Callable[..., Any], main: Callable[..., Any]) -> MappingProxyType[str, str]:
    theirs, ours = learn(function), learn(main)
    if theirs is None or ours is None:
        return MappingProxyType({})
    pairs = zip(theirs.places(), ours.places(), strict=False)
    return MappingProxyType({a[0]: b[0] for a, b in pairs if len(a) == len(b) == 1 and a != b})
