"""$name: say in one line what it is for."""

import torch

import opwright as ow


@ow.op
def $name(x: torch.Tensor, *, beta: float = 1.0) -> torch.Tensor:
    """x · sigmoid(beta · x), elementwise.

    Args:
        x: `[...]`, floating-point
        beta: how sharply it bends; no gradient

    Equivalent to: `x * torch.sigmoid(beta * x)`
    """
    ow.require(x.is_floating_point(), "x must be floating-point, got {x.dtype}")
    return x * torch.sigmoid(beta * x)


@$name.samples
def _(make):
    yield make(3)
    yield make(64, 33), {"beta": 2.0}
    yield make(5, 4).t()
    yield make(0)


@$name.rejects
def _(make):
    yield ValueError, "x must be floating-point", make(3, dtype=torch.int64)
    yield TypeError, "beta must be a float", (make(3), {"beta": "2"})


@$name.cost
def _(x, beta):
    return ow.Cost(bytes=2 * x.nbytes, flops=5 * x.numel())


# Where the kernels may run; everywhere else the reference does. Built on first use.
$name.kernel_files($files, domain=ow.Domain(dtypes=ow.FLOATING))
