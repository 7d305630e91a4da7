"""Values that are close, or right only where nobody looks."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

FLOATS = (torch.float32, torch.float64)
ANY = ow.Domain(dtypes=FLOATS)
ROWS = ow.Domain(dtypes=FLOATS, layout="contiguous", ranks={"x": 2})


def shapes(make: ow.Maker) -> Iterator[Any]:
    for shape in ((5,), (4, 3), (), (0,)):
        yield make(*shape)


def matrices(make: ow.Maker) -> Iterator[Any]:
    for shape in ((3, 4), (2, 3000), (2, 0)):
        yield make(*shape)
    yield make(2, 2000, low=0.5, high=2.0)


@ow.op(namespace="broken")
def float_sum(x: Tensor) -> Tensor:
    """The sum of each row; a float holds the sum of doubles."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.sum(-1)


@ow.op(namespace="broken")
def bfloat_sum(x: Tensor) -> Tensor:
    """The sum of each row; rounds to bfloat16 after each addition, and is right for every other dtype."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.sum(-1)


@ow.op(namespace="broken")
def int_sum(x: Tensor) -> Tensor:
    """The sum of each row of integers; the sum is promised as int64 and is kept in int32."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.sum(-1, dtype=torch.int64)


@ow.op(namespace="broken")
def cancelling_variance(x: Tensor) -> Tensor:
    """The variance of each row as the mean of squares less the square of the mean, in the precision of x."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.var(-1, correction=0)


@ow.op(namespace="broken")
def quick_exp(x: Tensor) -> Tensor:
    """exp(x), to three digits."""
    return x.exp()


@ow.op(namespace="broken")
def swallowed_nan(x: Tensor) -> Tensor:
    """relu(x); a comparison with NaN is false, and gives 0."""
    return x.clamp_min(0)


@ow.op(namespace="broken")
def infinite_ratio(x: Tensor) -> Tensor:
    """The sigmoid as eˣ / (1 + eˣ), which is inf / inf for large x."""
    return x.sigmoid()


@ow.op(namespace="broken")
def lost_sign(x: Tensor) -> Tensor:
    """x, or x / 8 where it is negative; gives 0 for -0."""
    return torch.where(x < 0, x * 0.125, x)


@ow.op(namespace="broken")
def flushed(x: Tensor) -> Tensor:
    """x / 2; gives 0 for what is too small to be normal."""
    return x * 0.5


@ow.op(namespace="broken")
def doubles_as_floats(x: Tensor) -> Tensor:
    """x + 1; its domain claims float64, and its loop reads float32."""
    return x + 1


@ow.op(namespace="broken")
def number_narrowed(x: Tensor, *, a: float = 1.0) -> Tensor:
    """a · x; keeps a as a float, also for doubles."""
    return x * a


@ow.op(namespace="broken")
def wider_result(x: Tensor) -> Tensor:
    """x + 1; computes halves in float and forgets to round back."""
    return x + 1


@ow.op(namespace="broken")
def half_overflow(x: Tensor, y: Tensor) -> Tensor:
    """√(x² + y²); rounds the squares to float16, which ends at 65504."""
    ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")
    return torch.hypot(x, y)


@ow.op(namespace="broken", nondifferentiable=(0,))
def unstable_sort(x: Tensor) -> Tensor:
    """The order that sorts each row; of equals the later comes first."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.sort(dim=-1, stable=True).indices


@ow.op(namespace="broken")
def truncated_division(x: Tensor, y: Tensor) -> Tensor:
    """⌊x / y⌋ of integers; C++ rounds towards 0."""
    ow.require(x.shape == y.shape, "x and y must have one shape, got {x.shape} and {y.shape}")
    return torch.div(x, y, rounding_mode="floor")


_each: ow.Op[..., Any]
for _each in (quick_exp, swallowed_nan, infinite_ratio, lost_sign, flushed, doubles_as_floats):
    _each.samples(shapes)
    _each.kernel_file("cpu.cpp", ANY)
wider_result.samples(shapes)
wider_result.kernel_file("cpu.cpp", ow.Domain(dtypes=(*FLOATS, torch.bfloat16)))
float_sum.samples(matrices)
float_sum.kernel_file("cpu.cpp", ROWS)
bfloat_sum.samples(matrices)
bfloat_sum.kernel_file(
    "cpu.cpp", ow.Domain(dtypes=(*FLOATS, torch.bfloat16, torch.float16), layout="contiguous", ranks={"x": 2})
)


@int_sum.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 4, dtype=torch.int32)
    yield make(2, 5, dtype=torch.int32, low=2**30, high=2**31 - 1)


int_sum.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.int32,), layout="contiguous", ranks={"x": 2}))


@cancelling_variance.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 40)
    yield make(3, 40, low=1000.0, high=1001.0)


cancelling_variance.kernel_file("cpu.cpp", ROWS)


@number_narrowed.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5), {"a": 2.0}
    yield make(5), {"a": 0.1}


number_narrowed.kernel_file("cpu.cpp", ANY)


@unstable_sort.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 5)
    yield make(6, 9).round()


unstable_sort.kernel_file("cpu.cpp", ROWS)


@truncated_division.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(9, dtype=torch.int64, low=-20, high=20), make(9, dtype=torch.int64, low=1, high=5)


truncated_division.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.int64,), layout="contiguous"))


@half_overflow.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5), make(5)
    yield make(9, low=-900.0, high=900.0), make(9, low=-900.0, high=900.0)


half_overflow.kernel_file("cpu.cpp", ow.Domain(dtypes=(*FLOATS, torch.float16), broadcast=True))
