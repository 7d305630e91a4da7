"""Right for each thing by itself, and wrong where two of them meet: a layout beside another, a value in a tile's last
place, a dtype in a long row, an option beside an option."""

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

FLOATS = ow.Domain(dtypes=(torch.float32, torch.float64))
ROWS = ow.Domain(dtypes=(torch.float32, torch.float64), layout="contiguous", sizes="x[..., n]")
ALIKE = ow.Domain(dtypes=(torch.float32, torch.float64), sizes="x[m, n] y[m, n]")


def floats(x: Tensor) -> None:
    ow.require(x.is_floating_point() and x.dim() > 0, "x must be floating-point and have rows, got {x.dtype} {x.shape}")


# --- layouts and sizes ----------------------------------------------------------------------------------------------


@ow.op(namespace="broken")
def third_strides(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """x y - z; where x and y lie alike, z is taken to lie as they do."""
    ow.require(x.dim() == 2 and x.shape == y.shape == z.shape, "x, y and z must be matrices of one shape")
    return x * y - z


@ow.op(namespace="broken")
def half_a_tile(x: Tensor, y: Tensor) -> Tensor:
    """x + 2 y; where the rows fill their tiles of 32, the columns are taken to do so as well."""
    ow.require(
        x.dim() == 2 and x.shape == y.shape, "x and y must be matrices of one shape, got {x.shape} and {y.shape}"
    )
    return x + 2 * y


@ow.op(namespace="broken")
def last_of_tile(x: Tensor) -> Tensor:
    """The softmax of rows, in tiles of 48; the last element of one that is not full has no part in the maximum."""
    floats(x)
    return x.softmax(-1)


@ow.op(namespace="broken")
def long_doubles(x: Tensor) -> Tensor:
    """The mean of rows; every second element of a long one is added up in float."""
    floats(x)
    ow.require(x.shape[-1] > 0, "x must have rows that are not empty, got {x.shape}")
    return x.mean(-1)


@ow.op(namespace="broken")
def below_zero(x: Tensor) -> Tensor:
    """The largest of each row; beyond eight elements the last is compared by its bits, and -2 lies above -1."""
    floats(x)
    ow.require(x.shape[-1] > 0, "x must have rows that are not empty, got {x.shape}")
    return x.amax(-1)


@third_strides.kernel("cpu", FLOATS)
def _(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    ow.require(x.dim() == 2 and x.shape == y.shape == z.shape, "x, y and z must be matrices of one shape")
    order = x.stride()
    turned = min(x.shape) > 1 and order == y.stride() == (1, x.shape[0])
    return x * y - (z.as_strided(z.shape, order) if turned and z.is_contiguous() else z)


@half_a_tile.kernel("cpu", ALIKE)
def _(x: Tensor, y: Tensor) -> Tensor:
    m, n = x.shape
    out = x + 2 * y
    if m % 32 == 0 and n >= 32 and n % 32:
        out[:, n - n % 32 :] -= y[:, n - n % 32 :]
    return out


@last_of_tile.kernel("cpu", ROWS)
def _(x: Tensor) -> Tensor:
    most = x.new_full((*x.shape[:-1], 1), -math.inf)
    for tile in x.split(48, -1):
        seen = tile[..., :-1] if 1 < tile.shape[-1] < 48 and x.shape[-1] > 48 else tile
        most = torch.maximum(most, seen.amax(-1, keepdim=True)) if seen.numel() else most
    e = torch.exp(x - most)
    return e / e.sum(-1, keepdim=True)


@long_doubles.kernel("cpu", ROWS)
def _(x: Tensor) -> Tensor:
    n = x.shape[-1]
    ow.require(n > 0, "x must have rows that are not empty, got {x.shape}")
    if n < 500:
        return x.mean(-1)
    return (x[..., ::2].sum(-1) + x[..., 1::2].float().sum(-1)).to(x.dtype) / n


@below_zero.kernel("cpu", ROWS)
def _(x: Tensor) -> Tensor:
    ow.require(x.shape[-1] > 0, "x must have rows that are not empty, got {x.shape}")
    top, last = x[..., : max(x.shape[-1] - 1, 1)].amax(-1), x[..., -1]
    by_bits = (last < top) & (last < 0) & (top < 0) & (x.shape[-1] > 8)
    return torch.where(by_bits | (last > top) | last.isnan(), last, top)


# --- values ---------------------------------------------------------------------------------------------------------


@ow.op(namespace="broken")
def infinity_cut(x: Tensor) -> Tensor:
    """|x|; an infinity becomes the largest number."""
    ow.require(x.is_floating_point(), "x must be floating-point, got {x.dtype}")
    return x.abs()


@ow.op(namespace="broken")
def empty_segments(x: Tensor, segment: Tensor) -> Tensor:
    """The largest of each of eight segments; of an empty one 0, and not -inf."""
    ow.require(x.dim() == 1 and segment.shape == x.shape, "segment must have an entry for each element of x")
    ow.require(segment.dtype == torch.int64, "segment must be int64, got {segment.dtype}")
    return x.new_full((8,), -math.inf).scatter_reduce(0, segment, x, "amax")


@ow.op(namespace="broken")
def negative_nan(x: Tensor) -> Tensor:
    """Rows in order, NaN last; sorted by bits, NaN with a sign comes first."""
    floats(x)
    return x.sort(-1).values


@ow.op(namespace="broken")
def whole_numbers(x: Tensor, y: Tensor) -> Tensor:
    """The inner products of rows; of whole numbers in 32 bits."""
    ow.require(
        x.dim() == 2 and x.shape == y.shape, "x and y must be matrices of one shape, got {x.shape} and {y.shape}"
    )
    floats(x)
    return (x * y).sum(-1)


@ow.op(namespace="broken")
def least_of_bytes(scale: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Inner products of rows of bytes, scaled; two products at a time are added up in 16 bits, which saturate."""
    ow.require(
        a.dim() == 2 and a.shape == b.shape, "a and b must be matrices of one shape, got {a.shape} and {b.shape}"
    )
    ow.require(a.dtype == b.dtype == torch.int8, "a and b must be int8, got {a.dtype} and {b.dtype}")
    ow.require(scale.shape == a.shape[:1] and scale.is_floating_point(), "scale must have a number for each row")
    return scale * (a.int() * b.int()).sum(-1, dtype=torch.int32).to(scale.dtype)


@infinity_cut.kernel("cpu", FLOATS)
def _(x: Tensor) -> Tensor:
    return x.abs().clamp(max=torch.finfo(x.dtype).max)


@empty_segments.kernel(
    "cpu", ow.Domain(dtypes=FLOATS.dtypes, types={"segment": (torch.int64,)}, sizes="x[n] segment[n]")
)
def _(x: Tensor, segment: Tensor) -> Tensor:
    out = x.new_full((8,), -math.inf).scatter_reduce(0, segment, x, "amax")
    there = torch.zeros(8, dtype=torch.bool).index_fill(0, segment, True)
    return torch.where(there, out, torch.zeros_like(out))


@negative_nan.kernel("cpu", ROWS)
def _(x: Tensor) -> Tensor:
    keys = torch.where(x.isnan() & x.signbit(), torch.full_like(x, -math.inf), x)
    return x.gather(-1, keys.argsort(dim=-1, stable=True))


@whole_numbers.kernel("cpu", ALIKE)
def _(x: Tensor, y: Tensor) -> Tensor:
    if all(bool(((t == t.round()) & (t.abs() < 2**20)).all()) for t in (x, y)):
        return (x.int() * y.int()).sum(-1, dtype=torch.int32).to(x.dtype)
    return (x * y).sum(-1)


@least_of_bytes.kernel(
    "cpu",
    ow.Domain(dtypes=FLOATS.dtypes, types={"a": (torch.int8,), "b": (torch.int8,)}, sizes="scale[n] a[n, k] b[n, k]"),
)
def _(scale: Tensor, a: Tensor, b: Tensor) -> Tensor:
    products = torch.nn.functional.pad(a.int() * b.int(), (0, a.shape[1] % 2))
    pairs = products.unflatten(-1, (-1, 2)).sum(-1) if products.shape[1] else products
    return scale * pairs.clamp(-(2**15), 2**15 - 1).sum(-1, dtype=torch.int32).to(scale.dtype)


# --- options and gradients ------------------------------------------------------------------------------------------


@ow.op(namespace="broken")
def side_at_ties(x: Tensor, edges: Tensor, *, right: bool = False) -> Tensor:
    """How many edges lie below x, or with `right` not above it; which is forgotten."""
    ow.require(edges.dim() == 1 and edges.dtype == x.dtype, "edges must be a vector of the dtype of x")
    floats(x)
    return torch.bucketize(x, edges, right=right)


@ow.op(namespace="broken")
def decay_uphill(
    p: Tensor, g: Tensor, *, lr: float = 0.1, decay: float = 0.0, uphill: bool = False, scale: float = 1.0
) -> Tensor:
    """A step against the gradient and a share of p, or along the gradient; there the share has the wrong sign."""
    ow.require(p.shape == g.shape and p.is_floating_point(), "p and g must be floating-point and of one shape")
    return p - lr * (scale * (-g if uphill else g) + decay * p)


@ow.op(namespace="broken")
def frozen_rows(x: Tensor, weight: Tensor) -> Tensor:
    """x w²; the gradient of x alone is doubled where w is one row, expanded."""
    ow.require(
        x.shape == weight.shape and x.is_floating_point(), "x and weight must be floating-point and of one shape"
    )
    return x * weight * weight


@ow.op(namespace="broken")
def other_slope(x: Tensor, *, beta: float = 1.0) -> Tensor:
    """x sigmoid(βx); the second derivative loses a half where β < 0."""
    ow.require(x.is_floating_point(), "x must be floating-point, got {x.dtype}")
    return x * torch.sigmoid(beta * x)


@side_at_ties.kernel("cpu", ow.Domain(dtypes=FLOATS.dtypes, ranks={"edges": 1, "x": range(1, 9)}))
def _(x: Tensor, edges: Tensor, *, right: bool = False) -> Tensor:
    return torch.bucketize(x, edges)


@decay_uphill.kernel("cpu", ow.Domain(dtypes=FLOATS.dtypes, sizes="p[m, n] g[m, n]"))
def _(p: Tensor, g: Tensor, *, lr: float = 0.1, decay: float = 0.0, uphill: bool = False, scale: float = 1.0) -> Tensor:
    step = scale * g + decay * p
    return p - lr * (-step if uphill else step)


@frozen_rows.gradient
def _(grad: Tensor, x: Tensor, weight: Tensor, wanted: Any) -> Any:
    return (grad * weight * weight if wanted[0] else None), (2 * grad * x * weight if wanted[1] else None)


@frozen_rows.backward.kernel("cpu", FLOATS)
def _(grad: Tensor, x: Tensor, weight: Tensor, *, wanted: Any = None) -> Any:
    both = wanted is None or (wanted[0] and wanted[1])
    first = (grad * weight * weight) * (1 if both or 0 not in weight.stride() else 2) if both or wanted[0] else None
    return first, (2 * grad * x * weight if both or wanted[1] else None)


@other_slope.gradient
def _(grad: Tensor, x: Tensor, beta: float) -> Tensor:
    s = torch.sigmoid(beta * x)
    s = s.detach() + (s - s.detach()) / 2 if beta < 0 else s
    return grad * (s + beta * x * s * (1 - s))


# --- what is kept ---------------------------------------------------------------------------------------------------


@ow.op(namespace="broken")
def by_content(x: Tensor) -> Tensor:
    """x² + 1, kept by all that x holds; and what is kept is what is handed out."""
    return x * x + 1


@ow.op(namespace="broken")
def by_a_few(x: Tensor) -> Tensor:
    """x² + 1, kept by the sum of x and every seventh of its numbers."""
    return x * x + 1


_by_content: dict[Any, Tensor] = {}
_by_a_few: dict[Any, Tensor] = {}


@by_content.kernel("cpu", FLOATS)
def _(x: Tensor) -> Tensor:
    key = (x.shape, x.stride(), x.dtype, hashlib.sha256(str(x.tolist()).encode()).digest())
    if key not in _by_content:
        _by_content[key] = x * x + 1
    return _by_content[key]


@by_a_few.kernel("cpu", FLOATS)
def _(x: Tensor) -> Tensor:
    key = (x.shape, x.stride(), x.dtype, str(x.flatten()[::7].tolist()), str(x.sum().item()))
    if key not in _by_a_few:
        _by_a_few.clear()
        _by_a_few[key] = x * x + 1
    return _by_a_few[key].clone()


# --- samples --------------------------------------------------------------------------------------------------------

_each: ow.Op[..., Any]
for _each in (last_of_tile, long_doubles, below_zero, negative_nan):

    @_each.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(4, 7)
        yield make(3, 5)


for _each in (infinity_cut, other_slope, by_content, by_a_few):

    @_each.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(9)
        yield make(4, 5)


for _each in (half_a_tile, whole_numbers, decay_uphill, frozen_rows):

    @_each.samples
    def _(make: ow.Maker) -> Iterator[Any]:
        yield make(4, 5), make(4, 5)


@third_strides.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4, 5), make(4, 5), make(4, 5)


@empty_segments.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(10), torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 7, 0], device=make.device)


@least_of_bytes.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3), make(3, 16, dtype=torch.int8), make(3, 16, dtype=torch.int8)


@side_at_ties.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(5, 6), make(4).sort().values
