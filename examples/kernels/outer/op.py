"""CUDA on packed accessors, with a launch of one's own."""

import torch

import opwright as ow


@ow.op
def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x yᵀ, every product of an entry of x with one of y.

    Args:
        x: `[n]`
        y: `[m]`

    Equivalent to: `torch.outer(x, y)`
    """
    ow.require(x.dim() == 1 and y.dim() == 1, "x and y must have one dimension, got {x.shape} and {y.shape}")
    return x[:, None] * y


@outer.samples
def _(make):
    yield make(3), make(5)
    yield make(100), make(70)[::2]
    yield make(0), make(4)


outer.kernel_file("cuda.cu", ow.Domain(dtypes=ow.FLOATING, sizes="x[n] y[m]"))
