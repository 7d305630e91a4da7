"""The arguments of a measured call, and what a function gives for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from opwright.kit.spec.values import has_gradient, tensors
from opwright.kit.truth.whole import Named


@dataclass(frozen=True)
class Given:
    """The arguments of a call, and what the operator says about them by name."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    bind: Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]
    followed: tuple[str, ...] = ()
    """Arguments that gradients are taken of."""
    written: tuple[str, ...] = ()

    def change(self, change: Callable[[Tensor], Tensor]) -> Given:
        """With other tensors."""

        def walk(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change(value)
            return type(value)(map(walk, value)) if isinstance(value, (list, tuple)) else value

        kwargs = {k: walk(v) for k, v in self.kwargs.items()}
        return replace(self, args=tuple(map(walk, self.args)), kwargs=kwargs)

    def fresh(self, grad: bool = False) -> Given:
        """The same memory and strides under new tensors, which require a gradient where one is taken; what is
        written to is a copy."""
        copied = {id(t) for name in self.written for t in tensors(self.bind(self.args, self.kwargs).get(name))}
        found = self.change(lambda t: t.detach().clone() if id(t) in copied else t.detach())
        for _, t in found.leaves() if grad else ():
            t.requires_grad_()
        return found

    def leaves(self) -> list[tuple[str, Tensor]]:
        """The tensors that gradients are taken of, by name."""
        values = self.bind(self.args, self.kwargs)
        found = []
        for name in self.followed:
            each = [t for t in tensors(values.get(name)) if has_gradient(t)]
            found += [(name + (f"[{i}]" if len(each) > 1 else ""), t) for i, t in enumerate(each)]
        return found

    def results(self, function: Callable[..., Any], incoming: list[Tensor] | None) -> list[Named]:
        """What a function gives: outputs, written arguments and, with `incoming` gradients of its outputs, the
        gradients that go out."""
        given = self.fresh(grad=incoming is not None)
        out = tensors(function(*given.args, **given.kwargs))
        found = [Named("the result" if len(out) == 1 else f"result {i}", t) for i, t in enumerate(out)]
        values = given.bind(given.args, given.kwargs)
        found += [Named(name, t) for name in self.written for t in tensors(values.get(name))]
        if incoming is not None:
            leaves = given.leaves()
            sources = [t for t in out if t.requires_grad]
            if len(sources) != len(incoming):
                raise ValueError(f"{len(sources)} of its outputs carry a gradient, the reference's {len(incoming)}")
            into = [g.to(t.dtype) for g, t in zip(incoming, sources, strict=True)]
            grads = torch.autograd.grad(sources, [t for _, t in leaves], into, allow_unused=True)
            for (name, t), g in zip(leaves, grads, strict=True):
                found.append(Named(f"the gradient of {name}", torch.zeros_like(t) if g is None else g, True))
        return found
