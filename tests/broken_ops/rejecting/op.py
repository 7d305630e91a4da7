"""Inputs that are turned away or let in by mistake."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

FLOATS = (torch.float32, torch.float64)
DENSE = ow.Domain(dtypes=FLOATS, layout="contiguous")


@ow.op(namespace="broken")
def rejects_valid(x: Tensor) -> Tensor:
    """x + 1; its kernel insists on a multiple of four, which its domain does not say."""
    return x + 1


@ow.op(namespace="broken")
def accepts_invalid(x: Tensor, y: Tensor) -> Tensor:
    """x + y of one shape; its kernel takes a longer y and leaves out the rest."""
    ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")
    return x + y


@ow.op(namespace="broken")
def wild_index(x: Tensor, index: Tensor) -> Tensor:
    """x[index]; its kernel looks wherever an index points."""
    ow.require(x.dim() == 1 and index.dim() == 1, "x and index must have one dimension")
    return x.index_select(0, index)


@ow.op(namespace="broken")
def wrong_error_(x: Tensor, y: Tensor) -> Tensor:
    """x + y of one shape in place; its kernel says something else than the reference about what it rejects."""
    ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")
    return x.add_(y)


@ow.op(namespace="broken")
def zero_division(x: Tensor, y: Tensor) -> Tensor:
    """x / y of integers, rounded towards 0; a division by 0 ends the process."""
    ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")
    return torch.div(x, y, rounding_mode="trunc")


@ow.op(namespace="broken")
def mixed_dtypes(x: Tensor, y: Tensor) -> Tensor:
    """x + y; its domain takes mixed dtypes, and its loop reads y as it reads x."""
    ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")
    return x + y


@rejects_valid.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(8)
    yield make(5)


@accepts_invalid.samples
@wrong_error_.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5), make(5)
    yield make(0), make(0)


@accepts_invalid.rejects
@wrong_error_.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    yield ValueError, "x and y must have one shape, got (3,) and (4,)", (make(3), make(4))


@wild_index.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5), torch.tensor([4, 0, 0])


@wild_index.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    yield IndexError, "out of range", (make(5), torch.tensor([0, 1 << 40]))


@zero_division.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9, dtype=torch.int64, low=-20, high=20), make(9, dtype=torch.int64, low=1, high=5)


@zero_division.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    yield RuntimeError, "ZeroDivisionError", (torch.tensor([1, 2]), torch.tensor([1, 0]))


@mixed_dtypes.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5), make(5)
    yield make(5), make(5, dtype=torch.float32)


rejects_valid.kernel_file("cpu.cpp", DENSE)
accepts_invalid.kernel_file("cpu.cpp", DENSE)
wild_index.kernel_file(
    "cpu.cpp", ow.Domain(dtypes=(*FLOATS, torch.int64), mixed=True, layout="contiguous", sizes="x[n] index[m]")
)
zero_division.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.int64,), layout="contiguous"))
mixed_dtypes.kernel_file("cpu.cpp", ow.Domain(dtypes=FLOATS, layout="contiguous", mixed=True))


@wrong_error_.kernel("cpu", DENSE)
def _(x: Tensor, y: Tensor) -> None:
    if x.shape != y.shape:
        raise RuntimeError("sizes differ")
    x.add_(y)
