"""Statistics across processes: one collective a direction, and no wait on the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .normal import AXES, spread


def _collectives() -> Any:
    """PyTorch's collectives that graphs hold; imported when first needed, since they are slow to import."""
    import torch.distributed._functional_collectives

    return torch.ops._c10d_functional


def _gather(own: Tensor, ranks: int, group: str) -> Any:
    ops = _collectives()
    return ops.wait_tensor(ops.all_gather_into_tensor(own, ranks, group))


def _sum(own: Tensor, group: str) -> Any:
    ops = _collectives()
    return ops.wait_tensor(ops.all_reduce(own, "sum", group))


# Kernels call them by these names: PyTorch's own take a group in a way that its stable ABI does not know. They say the
# group's name in numbers, since that ABI loses the memory of every text that it hands over.
_library = torch.library.Library("opwright_conv_bn", "FRAGMENT")
_library.define("gather(Tensor own, int ranks, int[] group) -> Tensor")
_library.define("sum(Tensor own, int[] group) -> Tensor")
_KEY = "CompositeExplicitAutograd"
_library.impl("gather", lambda own, ranks, group: _gather(own, ranks, bytes(group).decode()), _KEY)
_library.impl("sum", lambda own, group: _sum(own, bytes(group).decode()), _KEY)


def gathered(wide: Tensor, group: str, ranks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and number of the values of each channel over all ranks, of which some may have none."""
    channels = wide.shape[1]
    n = wide.numel() // max(channels, 1)
    mean = wide.sum(AXES) / max(n, 1)
    deviations = (wide - spread(mean)).square().sum(AXES)
    own = torch.cat((mean, deviations, mean.new_full((1,), n)))
    parts = _gather(own, ranks, group).view(ranks, 2 * channels + 1)
    means, squares, counts = parts[:, :channels], parts[:, channels:-1], parts[:, -1:]
    count = counts.sum()
    mean = (counts * means).sum(0) / count
    var = (squares + counts * (means - mean).square()).sum(0) / count
    return mean, var, count


def summed(group: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The sums over all ranks, in one collective. Their gradient is the sum of the gradients."""
    together = _Sum.apply(torch.cat(tensors), group)  # type: ignore[no-untyped-call]
    return tuple(together.split([t.shape[0] for t in tensors]))


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, group: str) -> Any:
        ctx.group = group
        return _sum(own, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return _Sum.apply(grad, ctx.group), None  # type: ignore[no-untyped-call]
