"""One call of a PyTorch function, as an annotated function of everything in it that a schema can hold."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import opwright as ow
from opwright.kit.spec.values import tensors
from tests.calling import Function

TYPES = {
    bool: "bool",
    int: "int",
    float: "float",
    complex: "complex",
    str: "str",
    torch.dtype: "torch.dtype",
    torch.memory_format: "torch.memory_format",
}
_numbers = itertools.count()


class NotExpressible(Exception):
    """No operator can be made of this call."""


@dataclass(frozen=True)
class Mends:
    """What an operator's reference must do, or its declaration say, for it to be accepted."""

    clone: bool = False
    mutates: tuple[str, ...] = ()
    random: bool = False

    def follow(self, message: str) -> Mends:
        """With what the message of a refusal asks for."""
        if written := re.search(r"mutates=\('(\w+)',\)", message):
            return replace(self, mutates=(*self.mutates, written[1]))
        if "random=True" in message:
            return replace(self, random=True)
        if "clone()" in message:
            return replace(self, clone=True)
        raise NotExpressible(f"a refusal without a remedy: {message}")


@dataclass
class Call:
    """A call of a function: the source of an annotated wrapper around it, and the arguments of that."""

    title: str
    function: Callable[..., Any]
    annotations: dict[str, str] = field(default_factory=dict)
    values: list[Any] = field(default_factory=list)
    scope: dict[str, Any] = field(default_factory=dict)
    expression: str = ""
    returns: str = ""

    @classmethod
    def of(cls, title: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Read it off a sample. Runs the function once, to learn what it returns."""
        call = cls(re.sub(r"\W+", "_", title).strip("_"), function)
        spelled = [call._spell(value) for value in args]
        spelled += [f"{name}={call._spell(value, name)}" for name, value in kwargs.items()]
        call.expression = f"function({', '.join(spelled)})"
        with torch.no_grad():
            call.returns = call._read_results(function(*args, **kwargs))
        return call

    def _spell(self, value: Any, hint: str = "") -> str:
        """An argument as it stands in the wrapper's call: a parameter, or a constant where no schema can hold it."""
        if isinstance(value, Tensor):
            return self._add("Tensor", value, "x")
        if isinstance(value, (list, tuple)) and value:
            shape = "{}" if isinstance(value, list) else "tuple({})"
            if all(isinstance(v, Tensor) for v in value):
                return shape.format(self._add("list[Tensor]", list(value), "xs"))
            if all(type(v) is int for v in value):
                return shape.format(self._add("list[int]", list(value), hint or "sizes"))
            if any(isinstance(v, Tensor) for v in value):
                return shape.format(f"[{', '.join(self._spell(v) for v in value)}]")
        if type(value) in TYPES:
            return self._add(TYPES[type(value)], value, hint or "n")
        name = f"constant_{len(self.scope)}"
        self.scope[name] = value
        return name

    def _add(self, annotation: str, value: Any, hint: str) -> str:
        name = f"{hint}_{len(self.values)}"
        self.annotations[name] = annotation
        self.values.append(value)
        return name

    def _read_results(self, out: Any) -> str:
        """The annotation of what it returns; the wrapper's source follows from it."""
        if isinstance(out, Tensor):
            return "Tensor"
        if isinstance(out, (list, tuple)) and out and all(isinstance(v, Tensor) for v in out):
            return "list[Tensor]" if isinstance(out, list) else f"tuple[{', '.join(['Tensor'] * len(out))}]"
        found = sum(isinstance(v, Tensor) for v in tree_leaves(out))
        if not found:
            raise NotExpressible(f"it returns {type(out).__name__}, without a tensor")
        self.expression = f"leaves({self.expression})"
        return f"tuple[{', '.join(['Tensor'] * found)}]"

    def source(self, mends: Mends = Mends()) -> str:
        """The wrapper as Python source."""
        parameters = ", ".join(f"{name}: {annotation}" for name, annotation in self.annotations.items())
        each = "v.clone()" if mends.clone else "v"
        body = {"T": "out.clone()" if mends.clone else "out", "l": f"[{each} for v in out]"}.get(self.returns[0])
        body = body or f"tuple([{each} for v in out])"
        return f"def {self.title}({parameters}) -> {self.returns}:\n    out = {self.expression}\n    return {body}\n"

    def reference(self, mends: Mends = Mends()) -> Callable[..., Any]:
        """The wrapper."""
        scope = {"torch": torch, "Tensor": Tensor, "function": self.function, "leaves": _leaves, **self.scope}
        exec(compile(self.source(mends), f"<{self.title}>", "exec"), scope)
        scope[self.title].__module__ = __name__
        made: Callable[..., Any] = scope[self.title]
        return made

    def operator(self, form: str, mends: Mends = Mends()) -> Callable[..., Any]:
        """A fresh operator of it, under a name that nobody had before."""
        return ow.op(
            name=f"{self.title}_{next(_numbers)}",
            namespace="opinfo",
            mutates=mends.mutates,
            random=mends.random,
            opaque=True if form == "opaque" else None,
        )(self.reference(mends))

    @property
    def given(self) -> list[Tensor]:
        """Its tensors, in order."""
        return [t for value in self.values for t in tensors(value)]

    def names(self) -> list[str]:
        """The parameter that each of them belongs to."""
        return [n for n, value in zip(self.annotations, self.values, strict=True) for _ in tensors(value)]

    def over(self, function: Callable[..., Any]) -> Function:
        """The call of `function` as a function of its tensors alone."""

        def call(*given: Tensor) -> tuple[Tensor, ...]:
            feed = list(given)
            values = []
            for value in self.values:
                if isinstance(value, Tensor):
                    value = feed.pop(0)
                elif isinstance(value, list) and isinstance(value[0], Tensor):
                    value, feed = feed[: len(value)], feed[len(value) :]
                values.append(value)
            return tuple(tensors(function(*values)))

        return call


def _leaves(out: Any) -> list[Tensor]:
    return [v for v in tree_leaves(out) if isinstance(v, Tensor)]
