"""Tensors on other devices than the graph, and graphs made within compiled functions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import opwright as ow


def test_tensors_on_another_device_are_refused_by_name() -> None:
    graph, x, other = ow.Graph(torch.tensor([[0, 1, 2], [1, 1, 0]]), 3), torch.rand(3, 4), torch.device("meta")
    for call, message in (
        (lambda: ow.spmm(x, graph, torch.rand(3, device=other)), "spmm: weight must be on cpu, as x is, got meta"),
        (lambda: ow.spmm(x, graph, bias=torch.rand(4, device=other)), "spmm: bias must be on cpu, as x is, got meta"),
        (
            lambda: ow.spmm(x, graph, torch.rand(3, device=other), reduce="max"),
            "spmm_max: weight must be on cpu, as x is, got meta",
        ),
        (lambda: ow.sddmm(x.to(other), x, graph), "sddmm: a must be on cpu, as b is, got meta"),
        (
            lambda: torch.ops.opwright.spmm(x, graph.rowptr, graph.col.to(other)),
            "spmm: col must be on cpu, as x is, got meta",
        ),
        (
            lambda: ow.Graph.from_csr(graph.rowptr.to(other), graph.col),
            "Graph: rowptr must have values, which a tensor on meta has not",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_graph_may_be_made_of_another_within_a_compiled_function() -> None:
    def both(x: Tensor, graph: ow.Graph, weight: Tensor) -> Tensor:
        return ow.spmm(x, graph.with_weight(weight)) + ow.spmm(x, graph.T, reduce="max")

    graph, x, weight = ow.Graph(torch.tensor([[0, 1, 2], [1, 1, 0]]), 3), torch.rand(3, 4), torch.rand(3)
    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    for _round in range(2):
        assert torch.equal(compiled(x, graph, weight), both(x, graph, weight))
