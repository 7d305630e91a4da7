"""What a graph is made of, read and refused."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from opwright.kit.spec.require import spell

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def edge_index(given: Any, num_nodes: Any) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Sources, targets and their numbers."""
    if not isinstance(given, Tensor):
        raise TypeError(f"Graph: edge_index must be a Tensor, got {type(given).__name__}")
    if given.layout != torch.strided:
        raise TypeError(
            f"Graph: edge_index must be a plain tensor, got {spell(given.layout)}; ow.Graph.from_sparse reads it"
        )
    if given.dim() != 2 or given.shape[0] != 2:
        raise ValueError(f"Graph: edge_index must have shape [2, edges], got {tuple(given.shape)}")
    _refuse_indices("edge_index", given)
    source, target = given.long().unbind(0)
    if num_nodes is None:
        least = int(given.max()) + 1 if given.numel() else 0
        sizes = (least, least)
    elif isinstance(num_nodes, (tuple, list)) and len(num_nodes) == 2:
        sizes = (_size("num_nodes", num_nodes[0]), _size("num_nodes", num_nodes[1]))
    else:
        sizes = (_size("num_nodes", num_nodes),) * 2
    for row, (name, index, size) in enumerate((("source", source, sizes[0]), ("target", target, sizes[1]))):
        _refuse_range(f"edge_index[{row}]", name, index, size)
    return source, target, sizes


def csr(
    rowptr: Any, col: Any, num_sources: Any, *, names: tuple[str, str] = ("rowptr", "col"), end: str = "source"
) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Sources, targets and their numbers, of compressed rows. `names` and `end` are what errors call the two tensors,
    and what an entry names: of compressed columns, a target."""
    offsets, entries = names
    for name, given in ((offsets, rowptr), (entries, col)):
        if not isinstance(given, Tensor):
            raise TypeError(f"Graph: {name} must be a Tensor, got {type(given).__name__}")
        if given.dim() != 1:
            raise ValueError(f"Graph: {name} must be a vector, got {tuple(given.shape)}")
        _refuse_indices(name, given)
    if rowptr.device != col.device:
        raise ValueError(f"Graph: {offsets} must be on {col.device}, where {entries} is, got {rowptr.device}")
    if rowptr.shape[0] == 0:
        raise ValueError(f"Graph: {offsets} must be one longer than there are rows, got no entries")
    count = col.shape[0]
    first, last = int(rowptr[0]), int(rowptr[-1])
    if (first, last) != (0, count):
        raise ValueError(f"Graph: {offsets} must go from 0 to the {count} entries of {entries}, got {first} to {last}")
    degrees = rowptr.long().diff()
    if bool((degrees < 0).any()):
        raise ValueError(f"Graph: {offsets} must not decrease, and does after row {int((degrees < 0).nonzero()[0])}")
    rows = rowptr.shape[0] - 1
    target = torch.repeat_interleave(degrees)
    source = col.long()
    sources = rows if num_sources is None else _size("num_sources", num_sources)
    _refuse_range(entries, end, source, sources)
    return source, target, (sources, rows)


def sparse(matrix: Any) -> tuple[Tensor, Tensor, tuple[int, int], Tensor]:
    """Sources, targets, their numbers and weights, of a sparse matrix."""
    if not isinstance(matrix, Tensor) and not hasattr(matrix, "tocsr"):
        raise TypeError(f"Graph.from_sparse: the matrix must be one of torch's or scipy's, got {type(matrix).__name__}")
    if len(matrix.shape) != 2:
        raise ValueError(f"Graph.from_sparse: the matrix must have 2 dimensions, got {tuple(matrix.shape)}")
    targets, sources = (int(size) for size in matrix.shape)
    source, target, values = _entries(matrix, targets, sources)
    if values.is_complex():
        raise ValueError(f"Graph.from_sparse: the matrix must have real values, got {spell(values.dtype)}")
    # Integers and truth values are an adjacency.
    weight = values if values.is_floating_point() else values.to(torch.get_default_dtype())
    refuse_weight(weight, source)
    return source, target, (sources, targets), weight


def _entries(matrix: Any, targets: int, sources: int) -> tuple[Tensor, Tensor, Tensor]:
    """Source, target and value of each entry of a sparse matrix."""
    if not isinstance(matrix, Tensor):
        rows = matrix.tocsr()
        index = torch.as_tensor(rows.indptr), torch.as_tensor(rows.indices)
        target, source = _compressed(*index, targets, sources, names=("indptr", "indices"), end="source")
        return source, target, torch.as_tensor(rows.data)
    if matrix.layout == torch.sparse_coo:
        if matrix.sparse_dim() != 2:
            raise ValueError(
                "Graph.from_sparse: the matrix must be sparse in both dimensions, "
                f"got {matrix.sparse_dim()} sparse and {matrix.dense_dim()} dense"
            )
        # Looked at before repeated entries are added up, which reads an index out of range as another one.
        for row, (name, size) in enumerate((("target", targets), ("source", sources))):
            _refuse_range(f"indices[{row}]", name, matrix._indices()[row], size)
        whole = matrix.coalesce()
        target, source = whole.indices().unbind(0)
        return source, target, whole.values()
    if matrix.layout == torch.sparse_csr:
        index, names = (matrix.crow_indices(), matrix.col_indices()), ("crow_indices", "col_indices")
        target, source = _compressed(*index, targets, sources, names=names, end="source")
        return source, target, matrix.values()
    if matrix.layout == torch.sparse_csc:
        index, names = (matrix.ccol_indices(), matrix.row_indices()), ("ccol_indices", "row_indices")
        source, target = _compressed(*index, sources, targets, names=names, end="target")
        return source, target, matrix.values()
    raise TypeError(f"Graph.from_sparse: the matrix must be sparse COO, CSR or CSC, got {spell(matrix.layout)}")


def _compressed(
    offsets: Tensor, entries: Tensor, rows: int, columns: int, *, names: tuple[str, str], end: str
) -> tuple[Tensor, Tensor]:
    """Row and column of each entry of compressed rows, of which there must be so many."""
    if offsets.shape != (rows + 1,):
        raise ValueError(f"Graph: {names[0]} must have shape ({rows + 1},), got {tuple(offsets.shape)}")
    column, row, _ = csr(offsets, entries, columns, names=names, end=end)
    return row, column


def refuse_weight(weight: Any, edges: Tensor) -> None:
    """Raise unless there is a weight for each edge, beside them."""
    if weight is None:
        return
    if not isinstance(weight, Tensor):
        raise TypeError(f"Graph: weight must be a Tensor, got {type(weight).__name__}")
    if weight.shape != edges.shape:
        raise ValueError(
            f"Graph: weight must have shape ({edges.shape[0]},), one number an edge, got {tuple(weight.shape)}"
        )
    if not weight.is_floating_point():
        raise ValueError(f"Graph: weight must be floating-point, got {spell(weight.dtype)}")
    if weight.device != edges.device:
        raise ValueError(f"Graph: weight must be on {edges.device}, where the edges are, got {weight.device}")


def _refuse_indices(name: str, given: Tensor) -> None:
    if given.dtype not in INTEGERS:
        known = ", ".join(spell(dtype) for dtype in INTEGERS)
        raise ValueError(f"Graph: {name} must be integers, one of {known}, got {spell(given.dtype)}")
    if given.is_meta:
        raise ValueError(
            f"Graph: {name} must have values, which a tensor on meta has not; graph.to('meta') has the shapes"
        )


def _refuse_range(where: str, name: str, index: Tensor, size: int) -> None:
    if index.numel() == 0:
        return
    least, most = (int(v) for v in torch.stack(index.aminmax()).tolist())
    if least < 0 or most >= size:
        wrong = least if least < 0 else most
        raise ValueError(f"Graph: {where} names {name} {wrong}, and there are {size}: it must lie in [0, {size})")


def _size(name: str, given: Any) -> int:
    try:
        size = -1 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        size = -1
    if size < 0:
        raise ValueError(f"Graph: {name} must be a number of nodes, or (sources, targets), got {given!r}")
    if size >= 2**31 - 1:
        raise ValueError(f"Graph: {name} must be below 2147483647, got {size}")
    return size
