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
    graph, compiled = ow.Graph(STAR, 4), ow.nn.GraphConv(3, 2, cached=True)
    graph.with_self_loops()
    compiled.load_state_dict(layer.state_dict())
    torch.testing.assert_close(torch.compile(compiled, backend="aot_eager", fullgraph=True)(x, graph), first)
    layer.to(torch.float64)
    assert layer(x.double(), LOOPS).dtype == torch.float64
    layer.reset_parameters()
    layer(x.double(), LOOPS)
    with pytest.raises(ValueError, match="needs cached=False"):
        layer(x.double(), STAR, torch.rand(6, dtype=torch.float64, requires_grad=True))


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_kept_normalisation_is_refused_while_the_graphs_own_weights_learn() -> None:
    weight = torch.rand(6, requires_grad=True)
    graph = ow.Graph(STAR, 4).with_weight(weight)
    matrix = torch.sparse_coo_tensor(STAR.flip(0), weight, (4, 4), check_invariants=True)
    for edges in (graph, matrix):
        layer, x = ow.nn.GraphConv(3, 2, cached=True), torch.rand(4, 3)
        for _ in range(2):  # also once something is kept
            with pytest.raises(ValueError, match=r"own weight requires a gradient, .* needs cached=False"):
                layer(x, edges)
            layer(x, STAR)
    ow.nn.GraphConv(3, 2, cached=True)(x, graph, torch.rand(6))  # they do not count here


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("wrong", [torch.rand(7), torch.rand(5), torch.rand(0), torch.rand(6, 1), [1.0] * 6])
def test_weights_of_another_length_are_refused(wrong: Any, loops: bool) -> None:
    layer, x = ow.nn.GraphConv(3, 2, add_self_loops=loops), torch.rand(4, 3)
    for edges in (STAR, ow.Graph(STAR, 4)):
        with pytest.raises(ValueError, match=r"GraphConv: edge_weight must have shape \(6,\), one number an edge, got"):
            layer(x, edges, wrong)
    if len(wrong):
        with pytest.raises(ValueError, match=r"edge_weight must have shape \(0,\)"):
            layer(x, STAR[:, :0], wrong)


@pytest.mark.parametrize("cached", [False, True])
def test_a_layer_that_was_evaluated_in_inference_mode_trains(cached: bool) -> None:
    layer, x, graph = ow.nn.GraphConv(3, 2, cached=cached), torch.rand(4, 3, requires_grad=True), ow.Graph(STAR, 4)
    for edges in (STAR.clone(), graph):
        with torch.inference_mode():
            expected = layer(x, edges)
        out = layer(x, edges)
        assert torch.equal(out, expected)
        out.sum().backward()
        layer.reset_parameters()


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_graphs_own_weights_take_the_dtype_of_x(dtype: torch.dtype, normalize: bool) -> None:
    layer, x = ow.nn.GraphConv(3, 2, normalize=normalize, dtype=dtype), torch.rand(4, 3, dtype=dtype)
    for own in (torch.float32, torch.float64):
        out = layer(x, ow.Graph(STAR, 4).with_weight(torch.full((6,), 0.5, dtype=own)))
        assert out.dtype == dtype
        torch.testing.assert_close(out, layer(x, STAR, torch.full((6,), 0.5, dtype=dtype)), rtol=2e-2, atol=1e-2)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("improved", [False, True])
def test_loops_are_added_to_those_of_a_matrix(improved: bool) -> None:
    """As GCNConv has it for sparse matrices, and not for edges."""
    a = torch.tensor([[3.0, 0.0, 1.0], [0.0, 0.0, 2.0], [1.0, 1.0, 0.5]])
    layer, x = ow.nn.GraphConv(4, 2, improved=improved, bias=False), torch.randn(3, 4)
    whole = a + torch.eye(3) * (2 if improved else 1)
    root = whole.sum(1).rsqrt()
    for matrix in (a.to_sparse(), a.to_sparse_csr()):
        out = layer(x, matrix)
        torch.testing.assert_close(out, (root[:, None] * whole * root) @ x @ layer.lin.weight.t())


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_matrices_with_loops_give_what_torch_geometric_gives() -> None:
    geometric: Any = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed")
    torch.manual_seed(0)
    a = torch.tensor([[3.0, 0.0, 1.0], [0.0, 0.0, 2.0], [1.0, 1.0, 0.5]]).to_sparse_csr()
    for improved in (False, True):
        theirs, ours = (kind(4, 2, improved=improved) for kind in (geometric.GCNConv, ow.nn.GraphConv))
        ours.load_state_dict(theirs.state_dict())
        x = torch.randn(3, 4)
        torch.testing.assert_close(ours(x, a), theirs(x, a))


def test_a_layer_is_exported_with_loops_that_were_made_before() -> None:
    layer, x, graph = ow.nn.GraphConv(3, 2), torch.rand(4, 3), ow.Graph(STAR, 4)
    bare = ow.nn.GraphConv(3, 2, add_self_loops=False)
    bare.load_state_dict(layer.state_dict())
    exported = torch.export.export(bare, (x, graph.with_self_loops()))
    other = ow.Graph(STAR.flip(1), 4)
    torch.testing.assert_close(exported.module()(x, other.with_self_loops()), layer(x, other))


def test_a_lazy_layer_keeps_what_was_set_before_its_first_call() -> None:
    lazy = ow.nn.GraphConv(-1, 2)
    torch.nn.init.constant_(lazy.bias, 3.0)  # type: ignore[arg-type]
    lazy(torch.rand(4, 5), STAR)
    assert lazy.bias is not None
    assert lazy.bias.tolist() == [3, 3]


def test_a_lazy_layer_learns_its_size_from_a_state_dict() -> None:
    known, lazy = ow.nn.GraphConv(5, 2), ow.nn.GraphConv(-1, 2)
    torch.nn.Sequential(lazy).load_state_dict(torch.nn.Sequential(known).state_dict())
    assert (repr(lazy), lazy.in_channels, lazy.lin.in_features) == ("GraphConv(5, 2)", 5, 5)
    x = torch.rand(4, 5)
    assert torch.equal(lazy(x, STAR), known(x, STAR))
    lazy.reset_parameters()
    assert lazy.lin.weight.abs().max() <= (6 / 7) ** 0.5


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
    with pytest.raises(ValueError, match=r"GraphConv: x must have shape \[\.\.\., nodes, in\], .* got \(3,\)"):
        ow.nn.GraphConv(-1, 2)(torch.rand(3), STAR)
    for loops in (True, False):
        with pytest.raises(ValueError, match="GraphConv: sources and targets must be the same nodes, got 4 sources"):
            ow.nn.GraphConv(3, 2, add_self_loops=loops)(torch.rand(4, 3), ow.Graph(STAR[:, :1], (4, 2)))
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
