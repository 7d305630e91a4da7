"""What a graph is made of, read and refused."""

from __future__ import annotations

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
    _refuse_dtype("edge_index", given)
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


def csr(rowptr: Any, col: Any, num_sources: Any) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Sources, targets and their numbers, of compressed rows."""
    for name, given in (("rowptr", rowptr), ("col", col)):
        if not isinstance(given, Tensor):
            raise TypeError(f"Graph: {name} must be a Tensor, got {type(given).__name__}")
        if given.dim() != 1:
            raise ValueError(f"Graph: {name} must be a vector, got {tuple(given.shape)}")
        _refuse_dtype(name, given)
    if rowptr.shape[0] == 0:
        raise ValueError("Graph: rowptr must be one longer than there are rows, got no entries")
    count = col.shape[0]
    first, last = int(rowptr[0]), int(rowptr[-1])
    if (first, last) != (0, count):
        raise ValueError(f"Graph: rowptr must go from 0 to the {count} entries of col, got {first} to {last}")
    degrees = rowptr.long().diff()
    if bool((degrees < 0).any()):
        raise ValueError(f"Graph: rowptr must not decrease, and does after row {int((degrees < 0).nonzero()[0])}")
    rows = rowptr.shape[0] - 1
    target = torch.repeat_interleave(degrees)
    source = col.long()
    sources = rows if num_sources is None else _size("num_sources", num_sources)
    _refuse_range("col", "source", source, sources)
    return source, target, (sources, rows)


def sparse(matrix: Any) -> tuple[Tensor, Tensor, tuple[int, int], Tensor]:
    """Sources, targets, their numbers and weights, of a sparse matrix."""
    if not isinstance(matrix, Tensor):
        if not hasattr(matrix, "tocsr"):
            raise TypeError(
                f"Graph.from_sparse: the matrix must be one of torch's or scipy's, got {type(matrix).__name__}"
            )
        rows = matrix.tocsr()
        weight = torch.as_tensor(rows.data)
        source, target, _ = csr(torch.as_tensor(rows.indptr), torch.as_tensor(rows.indices), rows.shape[1])
        return source, target, (rows.shape[1], rows.shape[0]), weight
    if matrix.dim() != 2:
        raise ValueError(f"Graph.from_sparse: the matrix must have 2 dimensions, got {tuple(matrix.shape)}")
    if matrix.layout == torch.sparse_coo:
        whole = matrix.coalesce()
        target, source = whole.indices().unbind(0)
        return source, target, (matrix.shape[1], matrix.shape[0]), whole.values()
    if matrix.layout == torch.sparse_csr:
        source, target, _ = csr(matrix.crow_indices(), matrix.col_indices(), matrix.shape[1])
        return source, target, (matrix.shape[1], matrix.shape[0]), matrix.values()
    if matrix.layout == torch.sparse_csc:
        target, source, _ = csr(matrix.ccol_indices(), matrix.row_indices(), matrix.shape[0])
        return source, target, (matrix.shape[1], matrix.shape[0]), matrix.values()
    raise TypeError(f"Graph.from_sparse: the matrix must be sparse COO, CSR or CSC, got {spell(matrix.layout)}")


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


def _refuse_dtype(name: str, given: Tensor) -> None:
    if given.dtype not in INTEGERS:
        raise ValueError(f"Graph: {name} must be integers, got {spell(given.dtype)}")


def _refuse_range(where: str, name: str, index: Tensor, size: int) -> None:
    if index.numel() == 0:
        return
    least, most = (int(v) for v in torch.stack(index.aminmax()).tolist())
    if least < 0 or most >= size:
        wrong = least if least < 0 else most
        raise ValueError(f"Graph: {where} names {name} {wrong}, and there are {size}: it must lie in [0, {size})")


def _size(name: str, given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ValueError(f"Graph: {name} must be a number of nodes, or (sources, targets), got {given!r}")
    if given >= 2**31 - 1:
        raise ValueError(f"Graph: {name} must be below 2147483647, got {given}")
    return given
