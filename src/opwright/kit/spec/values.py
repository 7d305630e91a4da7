"""Questions about arguments and results: which tensors they hold, and which of those have gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor


def tensors(value: Any) -> list[Tensor]:
    """The tensors in a value: itself, or those of a list or tuple.

    >>> [t.dim() for t in tensors([torch.ones(2), (torch.ones(()), None)])]
    [1, 0]
    """
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    return []


@cache
def tuple_of(*names: str) -> Callable[[Iterable[Any]], Any]:
    """What makes the tuple of gradients with these names.

    >>> tuple_of("grad_x", "grad_y")([1, 2])
    Gradients(grad_x=1, grad_y=2)
    """
    make: Callable[[Iterable[Any]], Any] = NamedTuple("Gradients", [(name, Any) for name in names])._make  # type: ignore[misc]
    return make


def copied(value: Any) -> Any:
    """A tensor's copy, or those of a list.

    >>> copied(torch.ones(1)), copied((torch.ones(1),))
    (tensor([1.]), [tensor([1.])])
    """
    return [t.clone() for t in value] if isinstance(value, (list, tuple)) else value.clone()


def has_gradient(t: Tensor) -> bool:
    """Whether a tensor of this dtype can have a gradient.

    >>> has_gradient(torch.ones(1)), has_gradient(torch.ones(1, dtype=torch.int64))
    (True, False)
    """
    return t.is_floating_point() or t.is_complex()


def has_values(t: Tensor) -> bool:
    """Whether a tensor's numbers can be looked at: a tracer's stand-in has none.

    >>> has_values(torch.ones(1)), has_values(torch.ones(1, device="meta"))
    (True, False)
    """
    return type(t) in (Tensor, torch.nn.Parameter) and not t.is_meta


def like(t: Any) -> Any:
    """A tensor with the shape, dtype and device of `t` that holds one element's memory; of a list, one for each.

    >>> like(torch.ones(2, 3)).untyped_storage().nbytes(), [t.shape for t in like([torch.ones(2)])]
    (4, [torch.Size([2])])
    """
    if isinstance(t, (list, tuple)):
        return [like(each) for each in t]
    return torch.empty((), dtype=t.dtype, device=t.device).expand(t.shape)


def unread(t: Tensor) -> Tensor:
    """What stands for a tensor that nobody reads, by somebody's word: its shape, and no numbers.

    >>> unread(torch.ones(2)), unread(torch.ones(2, dtype=torch.int64)).shape
    (tensor([nan, nan]), torch.Size([2]))
    """
    if not has_gradient(t):
        return torch.empty((), dtype=t.dtype, device=t.device).expand(t.shape)
    return torch.full((), float("nan"), dtype=t.dtype, device=t.device).expand(t.shape)


def reduce_to(grad: Tensor, x: Tensor) -> Tensor:
    """A gradient summed over the dimensions that x was broadcast along, in x's dtype: the gradient of x.

    >>> reduce_to(torch.ones(2, 3), torch.empty(3))
    tensor([2., 2., 2.])
    """
    if grad.shape != x.shape:
        grad = grad.sum_to_size(x.shape)
    if grad.is_complex() and not x.is_complex():
        grad = grad.real
    return grad.to(x.dtype)
