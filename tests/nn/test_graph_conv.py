"""The layer stands where torch-geometric's GCNConv stood."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow

STAR = torch.tensor([[0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]])
"""The graph of torch-geometric's own test."""
LOOPS = torch.tensor([[0, 0, 1, 2], [0, 1, 2, 2]])


def by_hand(x: Tensor, ends: Tensor, weight: Tensor | None, layer: Any, *, loop: float = 1.0) -> Tensor:
    """The formula, with a dense matrix."""
    nodes = x.shape[0]
    each = torch.ones(ends.shape[1], dtype=x.dtype) if weight is None else weight
    a = torch.zeros(nodes, nodes, dtype=x.dtype).index_put((ends[1], ends[0]), each, accumulate=True)
    if layer.add_self_loops:
        a = a + torch.diag(loop * (a.diagonal() == 0).to(x.dtype))
    root = a.sum(1).clamp(min=1e-300).rsqrt() * (a.sum(1) > 0)
    out: Tensor = (root[:, None] * a * root) @ x @ layer.lin.weight.t()
    return out if layer.bias is None else out + layer.bias


@pytest.mark.parametrize("ends", [STAR, LOOPS], ids=["star", "loops"])
@pytest.mark.parametrize("loops", [True, False])
def test_it_is_the_formula(ends: Tensor, loops: bool) -> None:
    torch.manual_seed(0)
    layer = ow.nn.GraphConv(3, 2, add_self_loops=loops, dtype=torch.float64)
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(ends.shape[1], dtype=torch.float64, requires_grad=True)
    for edge_weight in (None, weight):
        expected = by_hand(x, ends, edge_weight, layer)
        for given in (ends, ow.Graph(ends, 4)):
            torch.testing.assert_close(layer(x, given, edge_weight), expected)
    leaves = (x, weight, layer.lin.weight)
    grads = [
        torch.autograd.grad(out.square().sum(), leaves)
        for out in (layer(x, ends, weight), by_hand(x, ends, weight, layer))
    ]
    torch.testing.assert_close(*grads)
    torch.autograd.gradcheck(lambda x, w: layer(x, ends, w), (x, weight))


def test_sparse_matrices_and_normalised_graphs_go_in() -> None:
    layer, x = ow.nn.GraphConv(3, 2), torch.rand(4, 3)
    expected = layer(x, STAR)
    matrix = torch.sparse_coo_tensor(STAR.flip(0), torch.ones(6), (4, 4), check_invariants=True)
    torch.testing.assert_close(layer(x, matrix), expected)
    plain = ow.nn.GraphConv(3, 2, normalize=False)
    plain.load_state_dict(layer.state_dict())
    graph = ow.Graph(STAR, 4).normalized()
    torch.testing.assert_close(plain(x, graph), expected)
    compiled = torch.compile(plain, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, graph), expected)


def test_a_kept_normalisation_is_kept_and_refused_while_weights_learn() -> None:
    layer, x = ow.nn.GraphConv(3, 2, cached=True), torch.rand(4, 3)
    first = layer(x, STAR)
    assert torch.equal(layer(x, LOOPS), first)
    layer.to(torch.float64)
    assert layer(x.double(), LOOPS).dtype == torch.float64
    layer.reset_parameters()
    layer(x.double(), LOOPS)
    with pytest.raises(ValueError, match="needs cached=False"):
        layer(x.double(), STAR, torch.rand(6, dtype=torch.float64, requires_grad=True))


def test_its_arguments_are_those_of_gcnconv() -> None:
    layer = ow.nn.GraphConv(3, 2, improved=True, cached=True, bias=False)
    assert repr(layer) == "GraphConv(3, 2, improved=True, cached=True, bias=False)"
    assert [*layer.state_dict()] == ["lin.weight"]
    assert {n: tuple(p.shape) for n, p in ow.nn.GraphConv(3, 2).state_dict().items()} == {
        "bias": (2,),
        "lin.weight": (2, 3),
    }
    lazy = ow.nn.GraphConv(-1, 2)
    assert lazy(torch.rand(4, 5), STAR).shape == (4, 2)
    assert repr(lazy) == "GraphConv(5, 2)"
    with pytest.raises(ValueError, match="add_self_loops needs normalize=True"):
        ow.nn.GraphConv(3, 2, normalize=False, add_self_loops=True)
    with pytest.raises(ValueError, match="in_channels must be a positive integer, or -1"):
        ow.nn.GraphConv(0, 2)
    with pytest.raises(TypeError, match=r"edge_index must be a Tensor or an ow\.Graph, got list"):
        ow.nn.GraphConv(3, 2)(torch.rand(4, 3), [[0], [1]])


def cases() -> Iterator[tuple[Tensor, int]]:
    yield STAR, 4
    ends = torch.randint(0, 9, (2, 40), generator=torch.Generator().manual_seed(3))
    # Of two loops of a node GCNConv takes one, and hands its gradient to both: that is nobody's derivative.
    yield ends[:, ends[0] != ends[1]], 9
    yield LOOPS, 5
    yield torch.zeros(2, 0, dtype=torch.int64), 3


@pytest.mark.parametrize("improved", [False, True])
@pytest.mark.parametrize("loops", [True, False])
def test_values_and_gradients_are_those_of_torch_geometric(improved: bool, loops: bool) -> None:
    geometric: Any = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed")
    torch.manual_seed(0)
    for ends, nodes in cases():
        theirs = geometric.GCNConv(16, 8, improved=improved, add_self_loops=loops)
        torch.nn.init.normal_(theirs.bias)
        ours = ow.nn.GraphConv(16, 8, improved=improved, add_self_loops=loops)
        ours.load_state_dict(theirs.state_dict())
        x = torch.randn(nodes, 16, requires_grad=True)
        weight = torch.rand(ends.shape[1], requires_grad=True)
        for edge_weight in (None, weight):
            found = []
            for layer in (theirs, ours):
                out = layer(x, ends, edge_weight)
                leaves: list[Any] = [x, layer.lin.weight, layer.bias, *([] if edge_weight is None else [weight])]
                found.append((out, *torch.autograd.grad(out.sin().sum(), leaves)))
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
