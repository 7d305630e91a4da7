"""Device code in two files, linked on the device side, and a sum over a block."""

import torch

import opwright as ow


@ow.op
def row_norms(x: torch.Tensor) -> torch.Tensor:
    """√Σⱼ xᵢⱼ², the length of every row.

    Args:
        x: `[n, m]`

    Equivalent to: `torch.linalg.vector_norm(x, dim=1)`
    """
    ow.require(x.dim() == 2, "x must be a matrix, got {x.shape}")
    return torch.linalg.vector_norm(x, dim=1)


@row_norms.samples
def _(make):
    yield make(3, 4)
    yield make(5, 1000)
    yield make(7, 33).t()
    yield make(0, 3)


row_norms.kernel_file(
    "cuda.cu", ow.Domain(dtypes=(torch.float32,), sizes="x[n, m]"), ow.Options(sources=("square.cu",), rdc=True)
)
