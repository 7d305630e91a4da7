"""The greatest and the least of neighbours."""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

import opwright as ow

from ..spmm.pattern import (
    INDEX,
    NODES,
    PATTERN,
    PIECE,
    SIZES,
    Edges,
    drawn,
    indices,
    moved,
    read,
    refuse_devices,
    refuse_features,
    sums_in,
)

Reduce = Literal["max", "min"]


@ow.op(autocast=(), nondifferentiable=PATTERN)
def spmm_max(
    x: Tensor,
    rowptr: Tensor,
    col: Tensor,
    weight: Tensor | None = None,
    *,
    edge: Tensor | None = None,
    t_rowptr: Tensor | None = None,
    t_col: Tensor | None = None,
    t_edge: Tensor | None = None,
    split: Tensor | None = None,
    t_split: Tensor | None = None,
    bins: Tensor | None = None,
    t_bins: Tensor | None = None,
    piece: int = 0,
    reduce: Reduce = "max",
) -> Tensor:
    """out[i] = max of weight[k] · x[col[k]] over the edges k of row i, for each feature, or the minimum.

    Without edges it is 0. This is the operator over plain tensors, which `ow.spmm(x, graph, reduce="max")` calls with
    those of a graph; the arguments are those of [spmm](spmm.md). NaN is greater and less than any number. Edges that
    share the maximum share its gradient evenly, as `torch.amax` has it.

    Args:
        x: `[columns, features]`
        rowptr: `[rows + 1]`
        col: `[edges]`
        weight: `[edges]`, optional
        reduce: `"max"` or `"min"`

    Equivalent to:
        row = torch.repeat_interleave(rowptr.diff())[:, None].expand(-1, features)
        out = torch.zeros(rows, features).scatter_reduce(0, row, weight[:, None] * x[col], "amax", include_self=False)

    >>> import torch
    >>> rowptr, col = torch.tensor([0, 2, 2]), torch.tensor([0, 1])
    >>> torch.ops.opwright.spmm_max(torch.tensor([[-1.0], [-2.0]]), rowptr, col)
    tensor([[-1.],
            [ 0.]])
    """
    other = t_rowptr, t_col, t_edge, split, t_split, bins, t_bins
    edges, message = _messages(x, rowptr, col, weight, edge, piece, *other)
    return _extremes(edges, message, reduce).to(x.dtype)


def _messages(
    x: Tensor, rowptr: Tensor, col: Tensor, weight: Tensor | None, edge: Tensor | None, piece: int = 0, *other: Any
) -> tuple[Edges, Tensor]:
    refuse_features(x, weight=weight)
    refuse_devices(x=x, rowptr=rowptr, col=col, weight=weight, edge=edge)
    edges = read(x.shape[0], rowptr, col, edge, piece, *other)
    count = col.shape[0]
    ow.require(weight is None or weight.shape == (count,), "weight must have shape ({count},), got {weight.shape}")
    factor = edges.weights(weight, sums_in(x.dtype))
    message = x.to(sums_in(x.dtype)).index_select(0, edges.col)
    return edges, message if factor is None else message * factor


def _extremes(edges: Edges, message: Tensor, reduce: str) -> Tensor:
    # The gradient of scatter_reduce gives a part to what it begins with where that is the extreme, taken in or not. NaN
    # never is.
    begin = torch.full((edges.rows, message.shape[1]), torch.nan, dtype=message.dtype, device=message.device)
    row = edges.row[:, None].expand(message.shape)
    found = begin.scatter_reduce(0, row, message, "amax" if reduce == "max" else "amin", include_self=False)
    has_edges = torch.zeros(edges.rows, dtype=torch.bool, device=message.device).index_fill(0, edges.row, True)
    return torch.where(has_edges[:, None], found, 0)


@spmm_max.gradient(needs={"x": ["x", "weight", *PATTERN], "weight": ["x", "weight", *PATTERN]})
def _(
    grad: Tensor,
    x: Tensor,
    rowptr: Tensor,
    col: Tensor,
    weight: Tensor | None,
    edge: Tensor | None,
    t_rowptr: Tensor | None,
    t_col: Tensor | None,
    t_edge: Tensor | None,
    split: Tensor | None,
    t_split: Tensor | None,
    bins: Tensor | None,
    t_bins: Tensor | None,
    piece: int,
    reduce: Reduce,
    wanted: list[bool],
) -> Any:
    shape = (rowptr.shape[0] - 1, x.shape[1])
    ow.require(grad.shape == shape, "grad must have shape {shape}, got {grad.shape}")
    edges, message = _messages(x, rowptr, col, weight, edge)
    wide = message.dtype
    with torch.no_grad():  # which edges have it does not change with what they have
        message = message.detach()
        hit = message == _extremes(edges, message, reduce).index_select(0, edges.row)
        among = torch.zeros(edges.rows, x.shape[1], dtype=wide, device=x.device).index_add(0, edges.row, hit.to(wide))
    share = (grad.to(wide) / among.clamp(min=1)).index_select(0, edges.row)
    grad_x = grad_weight = None
    if wanted[0]:
        factor = edges.weights(weight, wide)
        zeros = torch.zeros(x.shape, dtype=wide, device=x.device)
        each = torch.where(hit, share if factor is None else share * factor, 0)
        grad_x = zeros.index_add(0, edges.col, each).to(x.dtype)
    if wanted[1] and weight is not None:
        each = torch.where(hit, share * x.to(wide).index_select(0, edges.col), 0)
        grad_weight = edges.ordered(each.sum(1), weight.dtype)
    return grad_x, grad_weight


@spmm_max.samples
def _(make: ow.Maker) -> Iterator[Any]:
    if not make.dtype.is_floating_point:
        return
    x, rows = make(4, 3), make(5)
    index, more = drawn(make, rows.shape[0], x.shape[0], hub=True)
    yield x, *index, make(*index[1].shape), more
    x, rows = make(3, 2), make(4)
    index, _ = drawn(make, rows.shape[0], x.shape[0])
    yield x, *index, None, {"reduce": "min"}


@spmm_max.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    x, rowptr, col = make(3, 2), indices(make, 0, 1, 3), indices(make, 2, 0, 1)
    yield ValueError, "spmm_max: x must have shape [nodes, features], got (3,)", (make(3), rowptr, col)
    yield ValueError, "spmm_max: weight must have shape (3,), got (2,)", (x, rowptr, col, make(2))
    if make.device.type == "cpu":
        yield RuntimeError, "spmm_max: col must lie in [0, 3), got 3", (x, rowptr, indices(make, 2, 0, 3))


@spmm_max.cost
def _(x: Tensor, rowptr: Tensor, col: Tensor, weight: Tensor | None, **rest: Any) -> ow.Cost:
    out = (rowptr.shape[0] - 1) * x.shape[1] * x.itemsize
    return ow.Cost(bytes=out + moved(x, rowptr, col, weight), flops=2 * col.shape[0] * x.shape[1])


@spmm_max.backward.cost
def _(grad: Tensor, x: Tensor, rowptr: Tensor, col: Tensor, weight: Tensor | None, **rest: Any) -> ow.Cost:
    through = moved(grad, x, x, rowptr, col, col, weight, weight)
    return ow.Cost(bytes=through, flops=4 * col.shape[0] * x.shape[1])


@spmm_max.bench("20 neighbours, 64 features", sizes=NODES)
def _(make: ow.Maker, n: int) -> Any:
    index, more = drawn(make, n, n, 20, order=False, longest=PIECE)
    return make(n, 64), *index, make(*index[1].shape), more


DOMAIN = ow.Domain(dtypes=ow.FLOATING, wide=("weight",), types=INDEX, sizes=f"x[n, f] weight[e] {SIZES}")
GRADIENT_DOMAIN = ow.Domain(
    dtypes=ow.FLOATING, wide=("weight",), types=INDEX, sizes=f"grad[_, f] x[n, f] weight[e] {SIZES}"
)
spmm_max.kernel_files("cpu.cpp", "cuda.cu", domain=DOMAIN, backward=GRADIENT_DOMAIN)
