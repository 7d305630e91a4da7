"""Wrong where several things come together: two large sizes, shapes that are not alike, numbers that are no float's."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

FLOATS = (torch.float32, torch.float64)
DENSE = ow.Domain(dtypes=FLOATS, layout="contiguous")
MATRICES = ow.Domain(dtypes=FLOATS, layout="contiguous", ranks={"a": 2, "b": 2})


@ow.op(namespace="broken")
def corner_tile(a: Tensor, b: Tensor) -> Tensor:
    """a b, in tiles; the tile that is the second along both sides begins with the first's rows."""
    return a @ b


@ow.op(namespace="broken")
def whole_tiles(a: Tensor, b: Tensor) -> Tensor:
    """a b; where all sides are multiples of a tile, the last tile of the inner side is left out."""
    return a @ b


@ow.op(namespace="broken")
def taken_for_alike(x: Tensor, y: Tensor) -> Tensor:
    """x y; one that has fewer elements is read round and round."""
    return x * y


@ow.op(namespace="broken")
def small_gradients(x: Tensor) -> Tensor:
    """x²; its gradient cuts incoming ones off at 8."""
    return x * x


@ow.op(namespace="broken")
def short_sums(scale: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Products of bytes, added up along rows and scaled; added up in 16 bits."""
    ow.require(a.dim() == 2 and a.shape == b.shape, "a and b must have one shape [n, k], got {a.shape} and {b.shape}")
    ow.require(scale.shape == a.shape[:1], "scale must have shape [n], got {scale.shape}")
    ow.require(a.dtype == b.dtype == torch.int8, "a and b must be int8, got {a.dtype} and {b.dtype}")
    return scale * (a.int() * b.int()).sum(-1, dtype=torch.int32).to(scale.dtype)


@ow.op(namespace="broken")
def narrow_window(x: Tensor, *, width: int = 2) -> Tensor:
    """The largest of the last `width` elements; of three at most."""
    ow.require(x.dim() == 1 and x.shape[0] > 0, "x must have one dimension and elements, got {x.shape}")
    ow.require(1 <= width <= 64, "width must lie between 1 and 64, got {width}")
    padded = torch.cat([x.new_full((width - 1,), float("-inf")), x])
    return padded.unfold(0, width, 1).amax(-1)


@ow.op(namespace="broken", nondifferentiable=("mask",))
def nothing_masked(x: Tensor, mask: Tensor) -> Tensor:
    """The sum of each row where the mask says so; where it says so everywhere, the last is left out."""
    ow.require(x.dim() == 2 and x.shape == mask.shape, "x and mask must be alike, got {x.shape} and {mask.shape}")
    ow.require(mask.dtype == torch.bool, "mask must be Boolean, got {mask.dtype}")
    return torch.where(mask, x, torch.zeros_like(x)).sum(-1)


_each: ow.Op[..., Any]
for _each in (corner_tile, whole_tiles):

    @_each.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(3, 4), make(4, 5)
        yield make(2, 7), make(7, 6)

    _each.kernel_file("cpu.cpp", MATRICES)


@taken_for_alike.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 5), make(4, 5)


@small_gradients.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9)


@short_sums.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3), make(3, 9, dtype=torch.int8), make(3, 9, dtype=torch.int8)


@narrow_window.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9)
    yield make(17), {"width": 3}


@nothing_masked.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 6), make(4, 6, dtype=torch.bool)


@small_gradients.gradient
def _(grad: Tensor, x: Tensor) -> Tensor:
    return 2 * grad * x.conj()


for _each in (taken_for_alike, small_gradients, narrow_window):
    _each.kernel_file("cpu.cpp", DENSE)
small_gradients.backward.kernel_file("cpu.cpp", DENSE)
BYTES, FLAGS = (torch.int8,), (torch.bool,)
short_sums.kernel_file("cpu.cpp", ow.Domain(dtypes=FLOATS, types={"a": BYTES, "b": BYTES}, layout="contiguous"))
nothing_masked.kernel_file("cpu.cpp", ow.Domain(dtypes=FLOATS, types={"mask": FLAGS}, layout="contiguous"))
