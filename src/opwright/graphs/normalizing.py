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
    inverse = 1 / _divisors(incoming(graph, weight))
    each = sddmm(inverse, inverse.new_ones(graph.num_sources, 1), graph)
    return each if weight is None else weight * each


def symmetric(graph: Graph, weight: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
    """w / √(dᵢ dⱼ), where d is the sum of the weights that come in, 0 where that is 0. Gradients pass through d too."""
    root = _divisors(incoming(graph, weight, dtype)).pow(-0.5)
    each = sddmm(root, root, graph)
    return each if weight is None else weight * each


def _divisors(total: Tensor) -> Tensor:
    """Infinity in place of 0: what is divided by it is 0, and so is its gradient, where 0 · ∞ would be NaN."""
    return total.masked_fill(total == 0, float("inf"))


def incoming(graph: Graph, weight: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
    """`[targets, 1]`: the sum of the weights that come in."""
    if weight is None:
        return graph.degrees().to(torch.get_default_dtype() if dtype is None else dtype)[:, None]
    return spmm(weight.new_ones(graph.num_sources, 1), graph, weight)
