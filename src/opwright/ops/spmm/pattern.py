"""Compressed rows in plain PyTorch: what the references of the operators over graphs share."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import opwright as ow

PATTERN = ("rowptr", "col", "edge", "t_rowptr", "t_col", "t_edge", "split", "t_split", "bins", "t_bins")
"""The parameters that say what the graph is."""
SIZES = "rowptr[_] col[e] edge[e] t_rowptr[_] t_col[e] t_edge[e] split[_, 2] t_split[_, 2] bins[_] t_bins[_]"
"""Their sizes, as domains have them."""
PIECE = 256
"""Edges of a piece of a long row."""
BINS = 32768
"""Into about so many bins the rows of a graph are divided, so that all of a GPU has something to do."""
BIN = (8, 128)
"""Edges and rows of a bin, at least and at most, about; a large graph has more bins."""
INTEGERS = (torch.int32, torch.int64)
INDEX = dict.fromkeys(PATTERN, INTEGERS)
"""Their dtypes, as domains have them."""


@dataclass
class Edges:
    """The edges of compressed rows as plain indices: edge k goes from column `col[k]` to row `row[k]`, and its weight
    is `weight[edge[k]]`, or `weight[k]` where `edge` is None."""

    row: Tensor
    col: Tensor
    edge: Tensor | None
    rows: int
    columns: int

    def weights(self, weight: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """The weights in the order of the edges, as a column."""
        if weight is None:
            return None
        return (weight if self.edge is None else weight.index_select(0, self.edge)).to(dtype)[:, None]

    def ordered(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Values of the edges, in the order of the weights."""
        if self.edge is not None:
            values = torch.zeros_like(values).index_add(0, self.edge, values)
        return values.to(dtype)


def read(
    columns: int, rowptr: Tensor, col: Tensor, edge: Tensor | None, piece: int = 0, *other: Tensor | None
) -> Edges:
    """The edges of compressed rows; ValueError where shapes or dtypes do not fit, RuntimeError where values do not, as
    kernels have it. `other`: the transposed form and the schedules, in the order of PATTERN, of which a reference looks
    at the shapes alone."""
    ow.require(
        rowptr.dim() == 1 and rowptr.shape[0] > 0 and rowptr.dtype in INTEGERS,
        "rowptr must be a vector of int32 or int64, one longer than there are rows, got {rowptr.dtype} {rowptr.shape}",
    )
    ow.require(
        col.dim() == 1 and col.dtype in INTEGERS, "col must be a vector of int32 or int64, got {col.dtype} {col.shape}"
    )
    count = col.shape[0]
    given = {"edge": edge, **dict(zip(PATTERN[3:], other, strict=False))}
    sizes: dict[str, Any] = {"edge": count, "t_rowptr": columns + 1, "t_col": count, "t_edge": count}
    for name, size in sizes.items():
        value = given.get(name)
        ow.require(
            value is None or (value.shape == (size,) and value.dtype in INTEGERS),
            "{name} must be {size} integers of int32 or int64, got {value.dtype} {value.shape}",
        )
    whole = {given.get(name) is None for name in ("t_rowptr", "t_col", "t_edge")}
    ow.require(len(whole) == 1, "t_rowptr, t_col and t_edge, the transposed form, must be given together")
    for name in ("split", "t_split"):
        value = given.get(name)
        ow.require(
            value is None or (value.dim() == 2 and value.shape[1] == 2 and value.dtype in INTEGERS),
            "{name} must have shape [pieces, 2] and be of int32 or int64, got {value.dtype} {value.shape}",
        )
    for name in ("bins", "t_bins"):
        value = given.get(name)
        ow.require(
            value is None or (value.dim() == 1 and value.dtype in INTEGERS),
            "{name} must be a vector of int32 or int64, got {value.dtype} {value.shape}",
        )
    ow.require(0 <= piece < 2**31, "piece must lie in [0, 2147483648), got {piece}")
    rows = rowptr.shape[0] - 1
    if readable(rowptr, col, edge):
        _refuse_values(rowptr, col, edge, columns)
    return Edges(_rows(rowptr, count), col.long(), None if edge is None else edge.long(), rows, columns)


def _rows(rowptr: Tensor, count: int) -> Tensor:
    """The row of each edge."""
    if rowptr.device.type == "cpu":
        return torch.repeat_interleave(rowptr.diff().long(), output_size=count)
    # Nobody waits there to look at offsets, and repeat_interleave would write beyond its result where they lie.
    each = torch.arange(count, device=rowptr.device, dtype=rowptr.dtype)
    return (torch.searchsorted(rowptr, each, right=True) - 1).clamp(0, max(rowptr.shape[0] - 2, 0))


def readable(*tensors: Tensor | None) -> bool:
    """Whether values can be looked at here: no graph is being traced, and no GPU has to be waited for."""
    return not torch.compiler.is_compiling() and all(
        t is None or (type(t) is Tensor and t.device.type == "cpu") for t in tensors
    )


def _refuse_values(rowptr: Tensor, col: Tensor, edge: Tensor | None, columns: int) -> None:
    count = col.shape[0]
    first, last = int(rowptr[0]), int(rowptr[-1])
    ow.require(
        (first, last) == (0, count), "rowptr must go from 0 to the {count} edges, got {first} and {last}", RuntimeError
    )
    ow.require(bool((rowptr.diff() >= 0).all()), "rowptr must not decrease", RuntimeError)
    if count == 0:
        return
    least, most = int(col.min()), int(col.max())
    wrong = least if least < 0 else most
    ow.require(least >= 0 and most < columns, "col must lie in [0, {columns}), got {wrong}", RuntimeError)
    if edge is not None:
        least, most = int(edge.min()), int(edge.max())
        wrong = least if least < 0 else most  # noqa: F841  the message says it
        ow.require(least >= 0 and most < count, "edge must lie in [0, {count}), got {wrong}", RuntimeError)


def sums_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype to add up in: float32 for half and bfloat16."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def refuse_features(x: Tensor, name: str = "x", **beside: Tensor | None) -> None:
    """Raise unless x is a matrix of floating-point numbers and what stands beside it has its dtype, or float32 beside
    half and bfloat16."""
    ow.require(x.is_floating_point(), "{name} must be a floating-point tensor, got {x.dtype}", NotImplementedError)
    ow.require(x.dim() == 2, "{name} must have shape [nodes, features], got {x.shape}")
    wide = sums_in(x.dtype)
    also = "" if wide == x.dtype else f" or {wide}"  # noqa: F841  the message says it
    for word, value in beside.items():  # noqa: B007
        ow.require(
            value is None or value.dtype in (x.dtype, wide),
            "{word} must be {x.dtype}, as {name} is{also}, got {value.dtype}",
        )


def refuse_devices(**tensors: Tensor | None) -> None:
    """Raise unless all tensors are where the first is. PyTorch's own errors name none of them, or there is none."""
    first, *others = tensors.items()
    name, x = first  # noqa: RUF059  the message says it
    assert x is not None
    for word, value in others:  # noqa: B007
        ow.require(
            value is None or value.device == x.device,
            "{word} must be on {x.device}, as {name} is, got {value.device}",
        )


def indices(make: ow.Maker, *values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=make.device)


NODES = {"cpu": (500, 2000, 8000, 20_000), "cuda": (10_000, 50_000, 100_000, 200_000)}
"""Sizes to measure: nodes, each with 20 neighbours."""


def drawn(
    make: ow.Maker,
    rows: int,
    columns: int,
    degree: float = 2.0,
    *,
    hub: bool = False,
    order: bool = True,
    longest: int = 3,
) -> Any:
    """A random graph for samples: rowptr and col, and by name its order, its transposed form and its schedules. With a
    `hub`, the first row has most of the edges."""
    count = int(rows * degree) if columns else 0
    row = torch.randint(0, max(rows, 1), (count,), generator=make.generator)
    if hub:
        row[count // 4 :] = 0
    col = torch.randint(0, max(columns, 1), (count,), generator=make.generator)
    return compressed(row, col, rows, columns, order=order, device=make.device, longest=longest)


def compressed(
    row: Tensor, col: Tensor, rows: int, columns: int, *, order: bool, device: Any, longest: int
) -> tuple[tuple[Tensor, Tensor], dict[str, Any]]:
    """rowptr and col, and the rest by name, of edges from columns to rows, in int32."""
    if not order:
        row = row.sort().values
    edge = row.argsort(stable=True)
    t_edge = col.argsort(stable=True)

    def starts(index: Tensor, size: int) -> Tensor:
        return torch.cat((index.new_zeros(1), torch.bincount(index, minlength=size).cumsum(0)))

    count, rowptr, t_rowptr = row.shape[0], starts(row, rows), starts(col, columns)
    rest: dict[str, Tensor | None] = {
        "edge": edge if order else None,
        "t_rowptr": t_rowptr,
        "t_col": row[t_edge],
        "t_edge": t_edge,
        "split": split_of(rowptr, longest),
        "t_split": split_of(t_rowptr, longest),
        "bins": bins_of(rowptr, count, longest),
        "t_bins": bins_of(t_rowptr, count, longest),
    }
    index: dict[str, Any] = {name: None if t is None else t.int().to(device) for name, t in rest.items()}
    index["piece"] = longest
    return (rowptr.int().to(device), col[edge].int().to(device)), index


def moved(*tensors: Tensor | None) -> int:
    """Bytes of tensors, each read or written once."""
    return sum(t.nbytes for t in tensors if t is not None)


def split_of(rowptr: Tensor, longest: int = PIECE) -> Tensor:
    """The pieces of rows with more than `longest` edges: the row and the first edge of each piece of so many."""
    degree = rowptr.diff()
    long = (degree > longest).nonzero().flatten()
    pieces = (degree[long] + longest - 1).div(longest, rounding_mode="floor").long()
    row = long.repeat_interleave(pieces)
    first = (pieces.cumsum(0) - pieces).repeat_interleave(pieces)
    begin = rowptr[row] + (torch.arange(row.shape[0], device=rowptr.device) - first) * longest
    return torch.stack((row, begin), 1).to(rowptr.dtype)


def bins_of(rowptr: Tensor, edges: int, longest: int = PIECE) -> Tensor:
    """The first row of each bin, and after the last one the number of rows. A bin has about as much work as others,
    edges and rows together; a row with more than `longest` edges is a bin of its own."""
    degree, rows = rowptr.diff(), rowptr.shape[0] - 1
    work = min(max((edges + rows) // BINS, BIN[0]), BIN[1])
    window = (rowptr[:-1].long() + torch.arange(rows, device=rowptr.device)).div(work, rounding_mode="floor")
    long = degree > longest
    begins = torch.ones(rows, dtype=torch.bool, device=rowptr.device)
    begins[1:] = (window[1:] != window[:-1]) | long[1:] | long[:-1]
    return torch.cat((begins.nonzero().flatten(), torch.tensor([rows], device=rowptr.device))).int()
