"""CUDA that knows no PyTorch: a plain C launcher, joined by a few lines of C++."""

import torch

import opwright as ow


@ow.op
def saxpy(x: torch.Tensor, y: torch.Tensor, *, a: float = 1.0) -> torch.Tensor:
    """a·x + y for vectors.

    Args:
        x: `[n]`
        y: `[n]`
        a: the factor of x; no gradient

    Equivalent to: `a * x + y`
    """
    ow.require(x.dim() == 1 and x.shape == y.shape, "x and y must be vectors of one length, got {x.shape}, {y.shape}")
    return a * x + y


@saxpy.samples
def _(make):
    yield make(3), make(3), {"a": 2.0}
    yield make(1000), make(1000)
    yield make(0), make(0)


saxpy.kernel_file(
    "bind.cpp",
    ow.Domain(dtypes=(torch.float32,), layout="contiguous", sizes="x[n] y[n]"),
    ow.Options(sources=("saxpy.cu",)),
)
