"""Sums and means over neighbours."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

import opwright as ow

from .pattern import (
    INDEX,
    NODES,
    PATTERN,
    PIECE,
    SIZES,
    drawn,
    indices,
    moved,
    read,
    refuse_devices,
    refuse_features,
    sums_in,
)

Reduce = Literal["sum", "mean"]


# Autocast leaves it alone, as it does sums: it takes what it is given.
@ow.op(autocast=(), nondifferentiable=PATTERN)
def spmm(
    x: Tensor,
    rowptr: Tensor,
    col: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
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
    reduce: Reduce = "sum",
    relu: bool = False,
) -> Tensor:
    """out[i] = Σ weight[k] · x[col[k]] + bias over the edges k of row i, or their mean; below 0, 0 if `relu`.

    This is the operator over plain tensors, which `ow.spmm(x, graph)` calls with those of a graph. Half and bfloat16
    are added up in float32 and rounded once; nothing of the size of edges times features is made. On the CPU an index
    out of range is an error; on a GPU, which nobody waits for, it is left out, and never read.

    Args:
        x: `[columns, features]`
        rowptr: `[rows + 1]`, int32 or int64: the edges of row i are those from `rowptr[i]` to `rowptr[i + 1]`
        col: `[edges]`, int32 or int64: the column that an edge comes from
        weight: `[edges]`, optional; float32 beside half and bfloat16 too
        bias: `[features]`, optional
        edge: `[edges]`, where each edge has its weight; absent, the weights are in the order of col. A permutation,
            which nobody checks: where it repeats, the gradient of a weight that edges share is not promised
        t_rowptr: `[columns + 1]`, with `t_col` and `t_edge` the transposed form, by which x gets its gradient: the
            edges by column, their rows, and where each has its weight. Made at each call where it is absent
        t_col: `[edges]`
        t_edge: `[edges]`
        split: `[pieces, 2]`, the schedule for a GPU: row and first edge of each piece of the rows that have more than
            `piece` edges, in their order. What it says decides who adds up, never what
        t_split: `[pieces, 2]`, that of the transposed form
        bins: `[bins + 1]`, the first row of each bin of rows that are walked one after another, and after the last the
            number of rows
        t_bins: those of the columns
        piece: how many edges a piece has
        reduce: `"sum"`, or `"mean"`, which divides by the number of edges
        relu: give 0 for what is below 0. The gradient then reads the result

    Equivalent to:
        row = torch.repeat_interleave(rowptr.diff())
        out = torch.zeros(rows, features).index_add(0, row, weight[edge, None] * x[col])

    >>> import torch
    >>> rowptr, col = torch.tensor([0, 2, 2]), torch.tensor([0, 1])
    >>> torch.ops.opwright.spmm(torch.tensor([[1.0], [2.0]]), rowptr, col)
    tensor([[3.],
            [0.]])
    """
    refuse_features(x, weight=weight, bias=bias)
    refuse_devices(x=x, rowptr=rowptr, col=col, weight=weight, bias=bias, edge=edge)
    edges = read(x.shape[0], rowptr, col, edge, piece, t_rowptr, t_col, t_edge, split, t_split, bins, t_bins)
    count, features = col.shape[0], x.shape[1]
    ow.require(weight is None or weight.shape == (count,), "weight must have shape ({count},), got {weight.shape}")
    ow.require(bias is None or bias.shape == (features,), "bias must have shape ({features},), got {bias.shape}")
    wide = sums_in(x.dtype)
    message = x.to(wide).index_select(0, edges.col)
    factor = edges.weights(weight, wide)
    message = message if factor is None else message * factor
    out = torch.zeros(edges.rows, features, dtype=wide, device=x.device).index_add(0, edges.row, message)
    if reduce == "mean":
        out = out / rowptr.diff().clamp(min=1)[:, None].to(wide)
    out = out if bias is None else out + bias.to(wide)
    return (out.relu() if relu else out).to(x.dtype)


@spmm.gradient(
    needs={"x": ["result", "weight", *PATTERN], "weight": ["result", "x", *PATTERN], "bias": ["result"]},
    when={"result": "relu"},
)
def _(
    grad: Tensor,
    result: Tensor | None,
    x: Tensor,
    rowptr: Tensor,
    col: Tensor,
    weight: Tensor | None,
    bias: ow.Like,
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
    relu: bool,
    wanted: list[bool],
) -> Any:
    _refuse_gradient(grad, (rowptr.shape[0] - 1, x.shape[1]))
    if relu and result is not None:
        ow.require(result.shape == grad.shape, "result must have shape {grad.shape}, as grad has, got {result.shape}")
        grad = torch.ops.aten.threshold_backward(grad, result, 0)
    wide = sums_in(x.dtype)
    grad_bias = grad.to(wide).sum(0).to(bias.dtype) if wanted[2] else None
    if not (wanted[0] or wanted[1]):
        return None, None, grad_bias
    edges = read(x.shape[0], rowptr, col, edge)
    each = grad.to(wide)
    if reduce == "mean":
        each = each / rowptr.diff().clamp(min=1)[:, None].to(wide)
    each = each.index_select(0, edges.row)
    grad_x = grad_weight = None
    if wanted[0]:
        factor = edges.weights(weight, wide)
        zeros = torch.zeros(x.shape, dtype=wide, device=x.device)
        grad_x = zeros.index_add(0, edges.col, each if factor is None else each * factor).to(x.dtype)
    if wanted[1] and weight is not None:
        products = (each * x.to(wide).index_select(0, edges.col)).sum(1)
        grad_weight = edges.ordered(products, weight.dtype)
    return grad_x, grad_weight, grad_bias


def _refuse_gradient(grad: Tensor, shape: Sequence[int]) -> None:
    ow.require(grad.shape == tuple(shape), "grad must have shape {shape}, got {grad.shape}")


@spmm.samples
def _(make: ow.Maker) -> Iterator[Any]:
    if not make.dtype.is_floating_point:
        return
    x, rows = make(4, 3), make(5)
    index, more = drawn(make, rows.shape[0], x.shape[0], hub=True)
    yield x, *index, make(*index[1].shape), make(x.shape[1]), {**more, "reduce": "mean"}
    x, rows = make(3, 4), make(3)
    index, more = drawn(make, rows.shape[0], x.shape[0], 4.0)
    yield x, *index, make(*index[1].shape), make(x.shape[1]), {**more, "relu": True}
    x, rows = make(3, 2), make(4)
    index, more = drawn(make, rows.shape[0], x.shape[0], order=False)
    yield (
        x,
        *index,
        None,
        None,
        {name: value for name, value in more.items() if name.startswith(("t_rowptr", "t_col", "t_edge"))},
    )
    x, rows = make(3, 1), make(2)
    index, _ = drawn(make, rows.shape[0], x.shape[0])
    yield x, *(t.long() for t in index)  # isolated nodes, no transposed form, indices of 64 bits


@spmm.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    x, rowptr, col = make(3, 2), indices(make, 0, 1, 3), indices(make, 2, 0, 1)
    yield ValueError, "spmm: x must have shape [nodes, features], got (3,)", (make(3), rowptr, col)
    yield ValueError, "spmm: rowptr must be a vector of int32 or int64", (x, make(3), col)
    yield ValueError, "spmm: col must be a vector of int32 or int64, got float32 (3,)", (x, rowptr, make(3))
    yield ValueError, "spmm: weight must have shape (3,), got (2,)", (x, rowptr, col, make(2))
    yield ValueError, "spmm: bias must have shape (2,), got (3,)", (x, rowptr, col, None, make(3))
    yield ValueError, "spmm: edge must be 3 integers", (x, rowptr, col, {"edge": col[:2]})
    yield ValueError, "spmm: t_rowptr, t_col and t_edge, the transposed form", (x, rowptr, col, {"t_col": col})
    wrong = {"weight": make(3, dtype=torch.float64)}
    yield ValueError, "spmm: weight must be float32, as x is, got float64", (x, rowptr, col, wrong)
    if make.device.type == "cpu":
        yield RuntimeError, "spmm: col must lie in [0, 3), got -1", (x, rowptr, indices(make, 2, 0, -1))
        yield RuntimeError, "spmm: col must lie in [0, 3), got 3", (x, rowptr, indices(make, 2, 0, 3))
        yield RuntimeError, "spmm: rowptr must not decrease", (x, indices(make, 0, 2, 1, 3), col)
        yield RuntimeError, "spmm: rowptr must go from 0 to the 3 edges, got 0 and 2", (x, indices(make, 0, 2, 2), col)
        yield RuntimeError, "spmm: edge must lie in [0, 3), got 7", (x, rowptr, col, {"edge": indices(make, 0, 7, 1)})


@spmm.cost
def _(x: Tensor, rowptr: Tensor, col: Tensor, weight: Tensor | None, bias: Tensor | None, **rest: Any) -> ow.Cost:
    """Everything once: what a cache that holds all of x would leave."""
    out = (rowptr.shape[0] - 1) * x.shape[1] * x.itemsize
    return ow.Cost(bytes=out + moved(x, rowptr, col, weight), flops=2 * col.shape[0] * x.shape[1])


@spmm.backward.cost
def _(grad: Tensor, x: Tensor, rowptr: Tensor, col: Tensor, weight: Tensor | None, **rest: Any) -> ow.Cost:
    flops = (2 if weight is None else 4) * col.shape[0] * x.shape[1]
    return ow.Cost(bytes=moved(grad, x, rowptr, col, col, weight, weight), flops=flops)


@spmm.bench("20 neighbours, 64 features", sizes=NODES)
def _(make: ow.Maker, n: int) -> Any:
    index, more = drawn(make, n, n, 20, order=False, longest=PIECE)
    return make(n, 64), *index, make(*index[1].shape), more


def _csr(x: Tensor, rowptr: Tensor, col: Tensor, weight: Tensor, *rest: Any, **more: Any) -> Any:
    return torch.sparse_csr_tensor(rowptr, col, weight.detach(), (rowptr.shape[0] - 1, x.shape[0])), x


spmm.rival("torch.sparse", lambda a, x: a @ x, prepare=_csr, same=False)

DOMAIN = ow.Domain(
    dtypes=ow.FLOATING,
    wide=("weight", "bias"),
    types=INDEX,
    sizes=f"x[n, f] weight[e] bias[f] {SIZES}",
)
GRADIENT_DOMAIN = ow.Domain(
    dtypes=ow.FLOATING,
    wide=("weight",),
    types=INDEX,
    sizes=f"grad[r, f] result[r, f] x[n, f] weight[e] {SIZES}",
)
spmm.kernel_files("cpu.cpp", domain=DOMAIN, backward=GRADIENT_DOMAIN)
ON_GPU = ow.Options(sources=("float.cu", "double.cu", "half.cu", "bfloat16.cu"))
spmm.kernel_files("cuda.cu", domain=DOMAIN, backward=GRADIENT_DOMAIN, options=ON_GPU)
spmm.shard("-> [_, f]", over="f")


# --- products where there are edges -----------------------------------------------------------------------------


@ow.op(autocast=(), nondifferentiable=PATTERN)
def sddmm(
    a: Tensor,
    b: Tensor,
    rowptr: Tensor,
    col: Tensor,
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
) -> Tensor:
    """out[edge[k]] = a[i] · b[col[k]] for the edges k of each row i.

    This is the operator over plain tensors, which `ow.sddmm(a, b, graph)` calls with those of a graph. It is the
    gradient of the weights of [spmm](spmm.md), whose arguments say what the others are.

    Args:
        a: `[rows, features]`
        b: `[columns, features]`
        rowptr: `[rows + 1]`
        col: `[edges]`

    Equivalent to: `(a[torch.repeat_interleave(rowptr.diff())] * b[col]).sum(1)`

    >>> import torch
    >>> rowptr, col = torch.tensor([0, 2]), torch.tensor([0, 1])
    >>> torch.ops.opwright.sddmm(torch.tensor([[3.0]]), torch.tensor([[1.0], [2.0]]), rowptr, col)
    tensor([3., 6.])
    """
    refuse_features(a, name="a")
    refuse_features(b, name="b")
    refuse_devices(b=b, a=a, rowptr=rowptr, col=col, edge=edge)
    ow.require(a.dtype == b.dtype, "a and b must have one dtype, got {a.dtype} and {b.dtype}")
    edges = read(b.shape[0], rowptr, col, edge, piece, t_rowptr, t_col, t_edge, split, t_split, bins, t_bins)
    rows, features = edges.rows, b.shape[1]
    ow.require(a.shape == (rows, features), "a must have shape ({rows}, {features}), got {a.shape}")
    wide = sums_in(a.dtype)
    products = a.to(wide).index_select(0, edges.row) * b.to(wide).index_select(0, edges.col)
    return edges.ordered(products.sum(1), a.dtype)


@sddmm.gradient(needs={"a": ["b", *PATTERN], "b": ["a", *PATTERN]})
def _(
    grad: Tensor,
    a: Tensor,
    b: Tensor,
    rowptr: Tensor,
    col: Tensor,
    edge: Tensor | None,
    t_rowptr: Tensor | None,
    t_col: Tensor | None,
    t_edge: Tensor | None,
    split: Tensor | None,
    t_split: Tensor | None,
    bins: Tensor | None,
    t_bins: Tensor | None,
    piece: int,
    wanted: list[bool],
) -> Any:
    _refuse_gradient(grad, col.shape)
    edges = read(b.shape[0], rowptr, col, edge)
    wide = sums_in(a.dtype)
    each: Any = edges.weights(grad, wide)
    grads: list[Tensor | None] = [None, None]
    for which, (to, at, other, there) in enumerate(((a, edges.row, b, edges.col), (b, edges.col, a, edges.row))):
        if wanted[which]:
            zeros = torch.zeros(to.shape, dtype=wide, device=to.device)
            grads[which] = zeros.index_add(0, at, each * other.to(wide).index_select(0, there)).to(to.dtype)
    return tuple(grads)


@sddmm.samples
def _(make: ow.Maker) -> Iterator[Any]:
    if not make.dtype.is_floating_point:
        return
    a, b = make(5, 3), make(4, 3)
    index, more = drawn(make, a.shape[0], b.shape[0], hub=True)
    yield a, b, *index, more


@sddmm.rejects
def _(make: ow.Maker) -> Iterator[Any]:
    rowptr, col = indices(make, 0, 1, 3), indices(make, 2, 0, 1)
    yield ValueError, "sddmm: a must have shape (2, 4), got (3, 4)", (make(3, 4), make(3, 4), rowptr, col)
    yield ValueError, "sddmm: b must have shape [nodes, features], got (3,)", (make(2, 4), make(3), rowptr, col)
    if make.device.type == "cpu":
        yield RuntimeError, "sddmm: col must lie in [0, 2), got 2", (make(2, 4), make(2, 4), rowptr, col)


@sddmm.cost
def _(a: Tensor, b: Tensor, rowptr: Tensor, col: Tensor, **rest: Any) -> ow.Cost:
    out = col.shape[0] * a.itemsize
    return ow.Cost(bytes=out + moved(a, b, rowptr, col), flops=2 * col.shape[0] * a.shape[1])


@sddmm.backward.cost
def _(grad: Tensor, a: Tensor, b: Tensor, rowptr: Tensor, col: Tensor, **rest: Any) -> ow.Cost:
    return ow.Cost(bytes=2 * moved(a, b, grad, rowptr, col), flops=4 * col.shape[0] * a.shape[1])


@sddmm.bench("20 neighbours, 64 features", sizes=NODES)
def _(make: ow.Maker, n: int) -> Any:
    index, more = drawn(make, n, n, 20, order=False, longest=PIECE)
    return make(n, 64), make(n, 64), *index, more


PRODUCT = ow.Domain(dtypes=ow.FLOATING, types=INDEX, sizes=f"a[r, f] b[n, f] {SIZES}")
PRODUCT_GRADIENT = ow.Domain(dtypes=ow.FLOATING, types=INDEX, sizes=f"grad[e] a[r, f] b[n, f] {SIZES}")
sddmm.kernel_files("cpu.cpp", domain=PRODUCT, backward=PRODUCT_GRADIENT)
sddmm.kernel_files("cuda.cu", domain=PRODUCT, backward=PRODUCT_GRADIENT, options=ON_GPU)
sddmm.shard("-> [e]", over="", sums="f")
