"""Running statistics of a batch norm."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow


# Autocast casts none of it: statistics stay as wide as they are.
@ow.op(mutates=("running_mean", "running_var", "batches"), nondifferentiable=("mean", "var", "count"), autocast=())
def track_statistics(
    running_mean: Tensor,
    running_var: Tensor,
    batches: Tensor | None,
    mean: Tensor,
    var: Tensor,
    count: Tensor | None = None,
    *,
    values: int = 0,
    momentum: float | None = 0.1,
) -> None:
    """running ← (1 - momentum) · running + momentum · batch, with Bessel's correction for the variance.

    A backward pass that runs the forward again, as activation checkpointing does, changes nothing: statistics are
    updated once a batch, which PyTorch's own batch norm does twice there.

    Args:
        running_mean: `[channels]`, updated
        running_var: `[channels]`, updated
        batches: a number, int64, which counts up; optional
        mean: `[channels]`, of the batch
        var: `[channels]`, of the batch, without Bessel's correction
        count: of how many values they are, a tensor; without it `values` says. Of 0, an empty batch, nothing is taken
        values: likewise
        momentum: None takes the mean over all batches, and needs `batches`

    Equivalent to:
        running_mean.mul_(1 - momentum).add_(momentum * mean)
        running_var.mul_(1 - momentum).add_(momentum * var * values / (values - 1))

    >>> import torch, opwright as ow
    >>> mean, var = torch.zeros(2), torch.ones(2)
    >>> ow.track_statistics(mean, var, None, torch.tensor([1.0, 2.0]), torch.tensor([4.0, 5.0]), values=5)
    >>> mean, var
    (tensor([0.1000, 0.2000]), tensor([1.4000, 1.5250]))
    """
    ow.require(
        running_mean.dim() == 1 and mean.shape == var.shape == running_mean.shape == running_var.shape,
        "the statistics must have shape [channels], got {running_mean.shape}, {running_var.shape}, {mean.shape} and "
        "{var.shape}",
    )
    ow.require(momentum is not None or batches is not None, "momentum can be None only with batches to count")
    ow.require(
        0 <= values < 2**53 and (count is not None or values != 1),
        "values must say of how many the statistics are, got {values}",
    )
    if torch._C._current_graph_task_id() != -1:
        return
    if batches is not None:
        batches.add_(1)
    if count is None and values == 0:
        return
    share: Any = momentum
    if momentum is None and batches is not None:
        share = 1.0 / batches.to(mean.dtype)
    n: Any = values if count is None else count.to(mean.dtype)
    new_mean = running_mean * (1 - share) + mean * share
    new_var = running_var * (1 - share) + var * (n / (n - 1)) * share
    # All processes together may have had nothing, which nobody waits to be told.
    running_mean.copy_(new_mean if count is None else torch.where(n > 0, new_mean, running_mean))
    running_var.copy_(new_var if count is None else torch.where(n > 0, new_var, running_var))


@track_statistics.samples
def _(make: ow.Maker) -> Iterator[Any]:
    if not make.dtype.is_floating_point:
        return

    def four(n: int, batches: Tensor | None) -> tuple[Any, ...]:
        return make(n), make(n, low=0.5), batches, make(n), make(n, low=0.5)

    yield *four(5, None), {"values": 3}
    yield *four(3, torch.tensor(4, device=make.device)), {"values": 7, "momentum": None}
    yield *four(2, torch.tensor(0, device=make.device)), make(low=9, high=10), {"momentum": 0.3}


@track_statistics.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    given = make(3), make(3), None, make(3)
    yield ValueError, "track_statistics: the statistics must have shape [channels]", (*given, make(2), {"values": 3})


@track_statistics.cost
def _(running_mean: Tensor, **rest: Any) -> ow.Cost:
    # Two are read and written, two are read.
    return ow.Cost(bytes=6 * running_mean.nbytes, flops=8 * running_mean.numel())


@track_statistics.bench("channels", sizes={"cpu": (64, 256, 1024, 4096), "cuda": (64, 256, 1024, 4096)})
def _(make: ow.Maker, n: int) -> Any:
    return make(n), make(n, low=0.5), None, make(n), make(n, low=0.5), {"values": 1000}


# What else is wrong with a call its kernels say: an operator that writes is not run twice to find out.
DOMAIN = ow.Domain(
    dtypes=(torch.float32, torch.float64),
    types={"batches": (torch.int64,)},
    sizes="running_mean[c] running_var[c] mean[c] var[c] count[] batches[]",
)
track_statistics.kernel_files("cpu.cpp", "cuda.cu", domain=DOMAIN)
