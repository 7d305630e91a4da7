"""What a Tensor subclass with attributes of its own needs before it behaves: making, copying, printing."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor

C = TypeVar("C", bound="Carrier")


class Carrier(torch.Tensor):
    """A Tensor subclass that can be made from a tensor within the autograd graph, deep-copied and printed."""

    @classmethod
    def _made_of(cls: type[C], tensor: Any) -> C:
        """`tensor` as this type, sharing its memory and its place in the autograd graph."""
        given = tensor if isinstance(tensor, Tensor) else torch.as_tensor(tensor)
        with torch._C.DisableTorchFunctionSubclass():
            return given.as_subclass(cls)

    def plain(self) -> Tensor:
        """The same tensor (its memory is shared) as a Tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(torch.Tensor)

    # Tensor's own asks new_empty for a tensor of this type, which the calls under it cannot give.
    def __deepcopy__(self: C, memo: dict[int, Any]) -> C:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        with torch._C.DisableTorchFunctionSubclass():
            if not self.is_leaf:
                raise RuntimeError(
                    f"deepcopy: only a leaf of the autograd graph can be copied, this {type(self).__name__} is a "
                    f"result; copy its .detach()"
                )
            made = copy.deepcopy(self.detach().as_subclass(torch.Tensor), memo).as_subclass(type(self))
            made.requires_grad_(self.requires_grad)
            if self.grad is not None:
                made.grad = copy.deepcopy(self.grad, memo)
            vars(made).update(copy.deepcopy(vars(self), memo))
        memo[id(self)] = made
        return made

    def __format__(self, spec: str) -> str:
        return format(self.plain(), spec) if spec else repr(self)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self._spelled()})"

    def _spelled(self) -> str:
        """How the tensor would print itself; `plain` is a view, whose history is not its own."""
        with torch._C.DisableTorchFunctionSubclass():
            shown = self.detach().as_subclass(torch.Tensor)
            if self.grad_fn is None:
                return repr(shown.requires_grad_(self.requires_grad))
            return f"{repr(shown).removesuffix(')')}, grad_fn=<{self.grad_fn.name()}>)"
