"""Normalised weights, differentiable in the weights that they are made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opwright.graphs.graph import Graph
from opwright.graphs.neighbours import sddmm, spmm


def normalized(graph: Graph, kind: Any, self_loops: bool, improved: bool) -> Graph:
    """What `Graph.normalized` promises."""
    if kind not in ("mean", "symmetric"):
        raise ValueError(f"normalized: kind must be 'mean' or 'symmetric', got {kind!r}")
    if kind == "mean":
        return graph.with_weight(mean(graph, graph.weight))
    graph._refuse_bipartite("normalized")
    looped = graph.with_self_loops(2.0 if improved else 1.0) if self_loops else graph
    return looped.with_weight(symmetric(looped, looped.weight))


def mean(graph: Graph, weight: Tensor | None) -> Tensor:
    """w / d, where d is the sum of the weights that come in; 0 where that is 0."""
    dtype = torch.get_default_dtype() if weight is None else weight.dtype
    inverse = 1 / _divisors(incoming(graph, weight, dtype))
    return _weighted(weight, sddmm(inverse, inverse.new_ones(graph.num_sources, 1), graph), dtype)


def symmetric(graph: Graph, weight: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
    """w / √(dᵢ dⱼ), where d is the sum of the weights that come in, 0 where that is 0. Gradients pass through d too."""
    dtype = weight.dtype if weight is not None else dtype or torch.get_default_dtype()
    root = _divisors(incoming(graph, weight, dtype)).pow(-0.5)
    return _weighted(weight, sddmm(root, root, graph), dtype)


def _weighted(weight: Tensor | None, each: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights times a factor each, rounded once."""
    return (each if weight is None else weight * each).to(dtype)


def _divisors(total: Tensor) -> Tensor:
    """Infinity in place of 0: what is divided by it is 0, and so is its gradient, where 0 · ∞ would be NaN."""
    return total.masked_fill(total == 0, float("inf"))


def incoming(graph: Graph, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`[targets, 1]`: the sum of the weights that come in. In float32 at least, whatever they are: half precisions have
    no number for many edges."""
    wide = torch.promote_types(dtype, torch.float32)
    if weight is None:
        return graph.degrees().to(wide)[:, None]
    return spmm(weight.new_ones(graph.num_sources, 1, dtype=wide), graph, weight.to(wide))
