"""Images, signals, distances and codes: what reads neighbours, and what rounds to few bits."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import opwright as ow

FLOATS = (torch.float32, torch.float64)
DENSE = ow.Domain(dtypes=FLOATS, layout="contiguous")


@ow.op(namespace="awkward")
def nearest(x: Tensor, scale: int = 2) -> Tensor:
    """Each pixel `scale` times in both directions."""
    ow.require(x.dim() == 4 and scale > 0, "x must be an image and scale positive, got {x.shape} and {scale}")
    return x.repeat_interleave(scale, 2).repeat_interleave(scale, 3)


@ow.op(namespace="awkward")
def bilinear(x: Tensor, height: int, width: int) -> Tensor:
    """An image drawn larger or smaller, pixels being areas."""
    ow.require(x.dim() == 4 and x.is_floating_point(), "x must be an image, got {x.shape}")
    return F.interpolate(x, (height, width), mode="bilinear", align_corners=False)


@ow.op(namespace="awkward")
def depthwise(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A causal convolution of each channel with taps of its own."""
    ow.require(x.dim() == 3 and weight.dim() == 2 and weight.shape[0] == x.shape[1], "weight must fit x")
    ow.require(weight.shape[1] > 0 and x.shape[2] > 0, "there must be taps and time, got {weight.shape} and {x.shape}")
    ow.require(bias is None or bias.shape == weight.shape[:1], "bias must fit x, got {bias.shape}")
    padded = F.pad(x, (weight.shape[1] - 1, 0))
    out = (padded.unfold(2, weight.shape[1], 1) * weight[:, None, :]).sum(-1)
    return out if bias is None else out + bias[:, None]


@ow.op(namespace="awkward")
def pooled(x: Tensor, window: int = 2) -> Tensor:
    """The means of windows that do not overlap; what is left over at the end is left out."""
    ow.require(x.dim() == 2 and 0 < window <= x.shape[1], "window must fit x, got {window} and {x.shape}")
    n = x.shape[1] // window
    return x[:, : n * window].reshape(x.shape[0], n, window).mean(-1)


@ow.op(namespace="awkward")
def distances(x: Tensor, y: Tensor) -> Tensor:
    """The squared distance of each row of x from each of y."""
    ow.require(x.dim() == 2 and y.dim() == 2 and x.shape[1] == y.shape[1], "x and y must be matrices with equal rows")
    return (x[:, None, :] - y).square().sum(-1)


@ow.op(namespace="awkward")
def alike(x: Tensor, y: Tensor, *, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between rows."""
    ow.require(x.dim() == 2 and x.shape == y.shape, "x and y must be matrices of one shape")
    ow.require(eps > 0, "eps must be positive, got {eps}")
    lengths = x.square().sum(-1).sqrt().clamp(min=eps) * y.square().sum(-1).sqrt().clamp(min=eps)
    return (x * y).sum(-1) / lengths


@ow.op(namespace="awkward")
def int8_codes(x: Tensor, *, scale: float = 0.25, zero: int = 3) -> Tensor:
    """x as int8: to the nearest, ties to even, and no further than the ends; NaN as 0."""
    ow.require(x.is_floating_point() and scale > 0, "x must be floating-point and scale positive, got {scale}")
    return (torch.round(x / scale) + zero).clamp(-128, 127).nan_to_num(0).to(torch.int8)


@ow.op(namespace="awkward")
def restore(code: Tensor, *, scale: float = 0.25, zero: int = 3) -> Tensor:
    """int8 as floats."""
    ow.require(code.dtype == torch.int8, "code must be int8, got {code.dtype}")
    return (code.to(torch.float32) - zero) * scale


@ow.op(namespace="awkward")
def nibbles(code: Tensor) -> Tensor:
    """Pairs of 4-bit numbers in one byte each."""
    ow.require(code.dtype == torch.uint8 and code.dim() == 1, "code must be uint8, got {code.dtype}")
    ow.require(code.shape[0] % 2 == 0, "code must have pairs, got {code.shape}")
    return (code[::2] & 15) | ((code[1::2] & 15) << 4)


@nearest.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(2, 3, 4, 5)
    yield make(1, 2, 3, 3), 3


@bilinear.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(2, 3, 4, 5), 7, 9
    yield make(1, 2, 8, 8), 3, 5


@depthwise.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(2, 3, 9), make(3, 4)
    yield make(2, 3, 9), make(3, 4), make(3)
    yield make(1, 2, 3), make(2, 5)


@pooled.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 8)
    yield make(2, 11), 3


@distances.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 5), make(4, 5)
    yield (x := make(3, 7)), x.clone()


@alike.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 5), make(3, 5)
    yield (x := make(4, 30)), 2 * x


@int8_codes.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(30)
    yield make(4, 5) * 20, {"scale": 0.5, "zero": 0}


@restore.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(17, dtype=torch.int8, low=-128, high=128)


@nibbles.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(12, dtype=torch.uint8, low=0, high=256)


_each: ow.Op[..., Any]
for _each in (nearest, bilinear, depthwise, pooled, distances, alike):
    _each.kernel_file("cpu.cpp", DENSE)
int8_codes.kernel_file("cpu.cpp", ow.Domain(dtypes=FLOATS, layout="contiguous"))
restore.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.int8,), layout="contiguous"))
nibbles.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.uint8,), layout="contiguous"))
