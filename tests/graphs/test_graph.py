"""The graph: what it is made of, what it refuses, and where it travels."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow

SHAPES = {
    "plain": ([[0, 1, 1, 3], [2, 2, 0, 1]], 4),
    "sorted": ([[3, 1, 0], [0, 1, 1]], 4),
    "repeated": ([[0, 0, 0], [1, 1, 0]], 2),
    "loops": ([[0, 1, 1], [0, 1, 0]], 3),
    "alone": ([[4], [0]], 6),
    "no edges": ([[], []], 3),
    "no nodes": ([[], []], 0),
    "bipartite": ([[0, 4, 4], [1, 1, 0]], (5, 2)),
    "no targets": ([[], []], (3, 0)),
}


def made(ends: Any, nodes: Any, **options: Any) -> ow.Graph:
    return ow.Graph(torch.tensor(ends, dtype=torch.int64), nodes, **options)


@pytest.fixture(params=SHAPES)
def graph(request: pytest.FixtureRequest) -> ow.Graph:
    ends, nodes = SHAPES[request.param]
    return made(ends, nodes)


def dense(graph: ow.Graph, weight: Tensor | None = None) -> Tensor:
    """Its matrix, added up edge by edge."""
    a = torch.zeros(graph.num_targets, graph.num_sources, dtype=torch.float64)
    for k, (source, target) in enumerate(graph.edge_index.t().tolist()):
        a[target, source] += 1 if weight is None else float(weight[k])
    return a


def test_a_graph_gives_its_edges_back(graph: ow.Graph) -> None:
    expected = {str(ends): nodes for ends, nodes in SHAPES.values()}
    assert str(graph.edge_index.tolist()) in expected
    assert graph.num_edges == graph.edge_index.shape[1]
    assert (graph.rowptr.dtype, graph.col.dtype, graph.t_edge.dtype) == (torch.int32,) * 3
    assert graph.degrees().tolist() == dense(graph).sum(1).tolist()


def test_sums_over_a_graph_are_products_with_its_matrix(graph: ow.Graph) -> None:
    weight = torch.rand(graph.num_edges, dtype=torch.float64)
    x = torch.rand(graph.num_sources, 3, dtype=torch.float64)
    assert torch.allclose(ow.spmm(x, graph, weight), dense(graph, weight) @ x)
    assert torch.allclose(ow.spmm(x, graph.with_weight(weight)), dense(graph, weight) @ x)


def test_turned_round_it_is_the_transposed_matrix(graph: ow.Graph) -> None:
    weight = torch.rand(graph.num_edges, dtype=torch.float64)
    turned = graph.T.with_weight(weight)
    assert torch.equal(dense(turned, weight), dense(graph, weight).t())
    y = torch.rand(graph.num_targets, 2, dtype=torch.float64)
    assert torch.allclose(ow.spmm(y, turned), dense(graph, weight).t() @ y)
    assert torch.equal(graph.T.T.edge_index, graph.edge_index)


def sparse_forms() -> Iterator[Any]:
    a = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [3.0, 0.0, 4.0], [5.0, 0.0, 0.0]])
    yield a, a.to_sparse()
    yield a, a.to_sparse_csr()
    yield a, a.to_sparse_csc()


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_sparse_matrices_are_graphs() -> None:
    for a, form in sparse_forms():
        graph = ow.Graph.from_sparse(form)
        assert (graph.num_targets, graph.num_sources) == (4, 3)
        assert torch.equal(ow.spmm(torch.eye(3), graph), a), form.layout


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_coo_matrix_with_repeated_entries_is_their_sum() -> None:
    form = torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (2, 2))
    assert ow.spmm(torch.eye(2), ow.Graph.from_sparse(form))[0, 1] == 3


def test_scipys_matrices_are_graphs() -> None:
    scipy = pytest.importorskip("scipy.sparse", reason="scipy comes with the dev extras")
    a = scipy.coo_matrix(([1.0, 2.0], ([0, 1], [2, 0])), shape=(2, 3))
    assert torch.equal(ow.spmm(torch.eye(3, dtype=torch.float64), ow.Graph.from_sparse(a)), torch.tensor(a.toarray()))


def test_what_looks_like_scipys_is_read_by_its_rows() -> None:
    class Rows:
        data, indices, indptr, shape = [1.0, 2.0], [2, 0], [0, 1, 2], (2, 3)

        def tocsr(self) -> Rows:
            return self

    graph = ow.Graph.from_sparse(Rows())
    assert ow.spmm(torch.eye(3), graph).tolist() == [[0, 0, 1], [2, 0, 0]]


def test_compressed_rows_are_graphs() -> None:
    graph = ow.Graph.from_csr(torch.tensor([0, 2, 2, 3]), torch.tensor([3, 0, 1]), 4)
    assert graph.edge_index.tolist() == [[3, 0, 1], [0, 0, 2]]
    assert graph.edge is None


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_integers_and_truth_values_are_an_adjacency(layout: torch.layout) -> None:
    for dtype in (torch.int64, torch.bool):
        matrix = torch.tensor([[0, 1], [1, 1]]).to(dtype).to_sparse(layout=layout)
        graph = ow.Graph.from_sparse(matrix)
        assert graph.weight is not None
        assert graph.weight.dtype == torch.get_default_dtype()
        assert ow.spmm(torch.eye(2), graph).tolist() == [[0, 1], [1, 1]]


def unchecked(layout: str, first: Any, second: Any, size: Any = (2, 2), values: Any = (1.0, 1.0)) -> Tensor:
    """A sparse matrix that torch has not looked at."""
    ends, form = (torch.tensor(first), torch.tensor(second)), torch.tensor(values)
    if layout == "coo":
        return torch.sparse_coo_tensor(torch.stack(ends), form, size, check_invariants=False)
    make = torch.sparse_csr_tensor if layout == "csr" else torch.sparse_csc_tensor
    return make(*ends, form, size, check_invariants=False)


class Scipys:
    """What looks like one of scipy's with a dimension."""

    shape = (4,)

    def tocsr(self) -> None: ...


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: unchecked("coo", [0, 5], [1, 0]), "indices[0] names target 5, and there are 2"),
        (lambda: unchecked("coo", [0, 1], [-1, 0]), "indices[1] names source -1, and there are 2"),
        (lambda: unchecked("csr", [0, 1, 2], [0, 7]), "col_indices names source 7, and there are 2"),
        (lambda: unchecked("csc", [0, 1, 2], [0, 7]), "row_indices names target 7, and there are 2"),
        (lambda: unchecked("csr", [0, 2, 1, 2], [0, 1], (3, 2)), "crow_indices must not decrease"),
        (lambda: unchecked("csc", [0, 1, 2], [0, 1], (2, 2), (1j, 1j)), "must have real values, got complex64"),
        (lambda: torch.rand(2, 3).to_sparse(1), "sparse in both dimensions, got 1 sparse and 1 dense"),
        (Scipys, "Graph.from_sparse: the matrix must have 2 dimensions, got (4,)"),
    ],
)  # fmt: skip
def test_bad_sparse_matrices_are_refused_by_name(make: Any, says: str) -> None:
    with pytest.raises(ValueError) as raised:
        ow.Graph.from_sparse(make())
    assert says in str(raised.value)


def vector(*values: int, **options: Any) -> Tensor:
    return torch.tensor(values, **options)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: made([[0, 5], [1, 1]], 3), ValueError, "edge_index[0] names source 5, and there are 3"),
        (lambda: made([[0, 1], [1, -1]], 3), ValueError, "edge_index[1] names target -1"),
        (lambda: made([[0, 1], [1, 4]], (9, 4)), ValueError, "edge_index[1] names target 4, and there are 4"),
        (lambda: ow.Graph(vector(1, 2), 3), ValueError, "edge_index must have shape [2, edges], got (2,)"),
        (lambda: ow.Graph(torch.rand(2, 3), 3), ValueError, "edge_index must be integers, one of int64, "),
        (lambda: ow.Graph([[0], [1]], 3), TypeError, "edge_index must be a Tensor, got list"),  # type: ignore[arg-type]
        (lambda: ow.Graph(torch.eye(2).to_sparse(), 3), TypeError, "ow.Graph.from_sparse reads it"),
        (lambda: made([[0], [1]], -2), ValueError, "num_nodes must be a number of nodes"),
        (lambda: made([[0], [1]], 2, weight=torch.ones(3)), ValueError, "weight must have shape (1,)"),
        (lambda: made([[0], [1]], 2, weight=vector(1)), ValueError, "weight must be floating-point, got int64"),
        (lambda: ow.Graph.from_csr(vector(0, 2, 1, 3), vector(0, 0, 0)), ValueError, "and does after row 1"),
        (lambda: ow.Graph.from_csr(vector(0, 2), vector(0, 0, 0)), ValueError, "to the 3 entries of col, got 0 to 2"),
        (lambda: ow.Graph.from_csr(vector(0, 1), vector(7)), ValueError, "col names source 7, and there are 1"),
        (lambda: ow.Graph.from_sparse(torch.eye(3)), TypeError, "must be sparse COO, CSR or CSC, got strided"),
        (lambda: ow.Graph.from_sparse("A"), TypeError, "must be one of torch's or scipy's, got str"),
        (lambda: made([[0], [0]], (2, 1)).normalized(), ValueError, "got 2 sources and 1 targets"),
        (lambda: made([[0], [0]], 1).normalized("max"), ValueError, "kind must be 'mean' or 'symmetric'"),  # type: ignore[arg-type]
        (lambda: ow.Graph.batch([]), ValueError, "there must be a graph at least"),
        (lambda: ow.Graph.batch(made([[0], [0]], 1)), TypeError, "must be several ow.Graph, such as a list, got Graph"),  # type: ignore[arg-type]
        (lambda: ow.Graph.batch([torch.eye(2)]), TypeError, "graphs[0] must be an ow.Graph, got Tensor"),  # type: ignore[list-item]
        (lambda: ow.Graph(torch.zeros(2, 3, dtype=torch.int64, device="meta"), 3), ValueError, "must have values"),
        (lambda: made([[0], [1]], 2.0), ValueError, "num_nodes must be a number of nodes"),
        (lambda: made([[0], [1]], True), ValueError, "num_nodes must be a number of nodes"),
    ],
)  # fmt: skip
def test_bad_graphs_are_refused_by_name(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as raised:
        make()
    assert says in str(raised.value)


def test_numbers_of_nodes_are_whatever_counts() -> None:
    for three in (3, torch.tensor(3), vector(0, 1, 2).max() + 1):
        assert made([[0], [1]], three).num_nodes == 3
        assert made([[0], [1]], (three, 2)).num_sources == 3
    numpy = pytest.importorskip("numpy", reason="numpy comes with the dev extras")
    assert made([[0], [1]], numpy.int64(3)).num_nodes == 3


def test_a_dtype_is_the_weights_and_no_index_takes_it() -> None:
    graph = made([[0, 1, 1], [2, 2, 0]], 3, weight=torch.tensor([1.0, 2.0, 3.0]))
    cast: Any = graph.to(torch.float64)
    assert cast.weight.dtype == torch.float64
    assert {getattr(cast, n).dtype for n in ("rowptr", "col", "edge", "t_edge", "split", "bins")} == {torch.int32}
    assert torch.equal(cast.edge_index, graph.edge_index)


def test_a_dtype_that_weights_cannot_have_is_refused() -> None:
    graph = made([[0, 1], [1, 0]], 2)
    for dtype in (torch.int64, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match="to: weights need a floating-point dtype, and indices keep theirs; got"):
            graph.to(dtype)


def test_graphs_travel() -> None:
    graph = made([[0, 1, 1], [2, 2, 0]], 3, weight=torch.tensor([1.0, 2.0, 3.0]))
    saved = io.BytesIO()
    torch.save(graph, saved)
    saved.seek(0)
    for other in (pickle.loads(pickle.dumps(graph)), torch.load(saved), graph.to("cpu"), graph.share_memory_()):
        assert torch.equal(other.edge_index, graph.edge_index)
        assert other.weight is not None
        assert other.weight.tolist() == [1, 2, 3]
    assert graph.to("cpu") is graph
    assert graph.to("meta").col.device.type == "meta"


class Graphs(torch.utils.data.Dataset[ow.Graph]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, n: int) -> ow.Graph:
        return ow.Graph(torch.tensor([[0], [n]]), n + 1)


@pytest.mark.slow
def test_workers_hand_graphs_over() -> None:
    loader: Any = torch.utils.data.DataLoader(Graphs(), batch_size=2, collate_fn=ow.Graph.batch, num_workers=1)
    assert [(g.num_nodes, g.edge_index.tolist()) for g in loader] == [(3, [[0, 1], [0, 2]]), (7, [[0, 3], [2, 6]])]


def test_a_batch_has_no_edges_between_its_graphs() -> None:
    first, second = made([[0, 1], [1, 1]], 2), made([[4], [0]], (5, 1))
    batch = ow.Graph.batch(g for g in (first, second, made([[], []], 1)))  # type: ignore[arg-type]
    assert (batch.num_sources, batch.num_targets) == (8, 4)
    assert torch.equal(dense(batch), torch.block_diag(dense(first), dense(second), torch.zeros(1, 1)))


def test_long_rows_are_split_into_pieces() -> None:
    ends = torch.stack((torch.arange(3000) % 7, torch.zeros(3000, dtype=torch.int64)))
    graph = ow.Graph(ends, 7)
    assert graph.split.tolist() == [[0, b] for b in range(0, 3000, 256)]
    assert graph.bins.tolist() == [0, 1, 7]
    assert len(graph.t_split) == 7 * 2  # 428 or 429 edges each


def test_bins_have_about_as_much_work() -> None:
    ends = torch.randint(0, 5000, (2, 60_000), generator=torch.Generator().manual_seed(0))
    ends[1, :9000] = 17
    graph = ow.Graph(ends, 5000)
    for bins in (graph.bins, graph.t_bins):
        assert bins[[0, -1]].tolist() == [0, 5000]
        assert (bins.diff() > 0).all()
    work = (graph.rowptr[graph.bins.long()] + graph.bins).diff()
    at = graph.bins.tolist().index(17)
    assert graph.bins[at + 1] == 18  # the long row alone
    assert work[at] > 9000
    assert work.sort().values[-2] < 60


def test_self_loops_are_one_a_node() -> None:
    graph = made([[0, 1, 1, 1], [1, 1, 0, 1]], 3, weight=torch.tensor([1.0, 2.0, 3.0, 4.0]))
    looped = graph.with_self_loops(9.0)
    assert looped.edge_index.tolist() == [[0, 1, 0, 1, 2], [1, 0, 0, 1, 2]]
    assert looped.weight is not None
    assert looped.weight.tolist() == [1, 3, 9, 4, 9]
    assert looped.carried(torch.tensor([5.0, 6.0, 7.0, 8.0]), 0.5).tolist() == [5, 7, 0.5, 8, 0.5]
    assert graph.with_self_loops().edge_index.equal(looped.edge_index)


def test_carried_weights_are_those_of_the_graph_it_was_made_from() -> None:
    looped = made([[0, 1, 1, 1], [1, 1, 0, 1]], 3).with_self_loops()
    for wrong in (torch.rand(0), torch.rand(3), torch.rand(5), torch.rand(4, 1), [1.0] * 4):
        for graph in (looped, pickle.loads(pickle.dumps(looped)), looped.with_weight(torch.rand(5))):
            with pytest.raises(ValueError, match=r"carried: weight must have shape \(4,\)"):
                graph.carried(wrong)  # type: ignore[arg-type]
    assert made([[], []], 2).with_self_loops().carried(torch.rand(0), 3.0).tolist() == [3, 3]


def test_what_inference_mode_left_in_a_graph_trains() -> None:
    ends = torch.tensor([[0, 1, 1], [2, 2, 0]])
    with torch.inference_mode():
        graph = ow.Graph(ends, 3)
        looped = graph.with_self_loops()
    for one in (graph, looped, graph.with_self_loops()):
        assert not any(t.is_inference() for t in one._tensors() if t is not None)
        x = torch.rand(3, 2, requires_grad=True)
        weight = torch.rand(one.num_edges, requires_grad=True)
        ow.spmm(x, one, weight).sum().backward()


def test_weights_that_sum_to_0_normalise_to_0_with_a_gradient() -> None:
    for kind in ("mean", "symmetric"):
        weight = torch.tensor([1.0, -1.0, 2.0], requires_grad=True)
        norm = made([[0, 1, 1], [0, 0, 1]], 2, weight=weight).normalized(kind, self_loops=False)  # type: ignore[arg-type]
        assert norm.weight is not None
        assert not norm.weight[:2].any()
        (grad,) = torch.autograd.grad(norm.weight.square().sum(), weight)
        assert grad.isfinite().all()


def test_a_graph_without_targets_has_a_mean() -> None:
    assert made([[], []], (3, 0)).normalized("mean").num_edges == 0


def test_normalised_graphs_have_the_weights_of_the_formula() -> None:
    graph = made([[0, 1, 1, 2], [1, 1, 0, 1]], 4, weight=torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))
    for improved in (False, True):
        loops = torch.eye(4, dtype=torch.float64) * (2 if improved else 1)
        a = dense(graph, graph.weight)
        a = a + loops * (a.diagonal() == 0)
        root = a.sum(1).rsqrt()
        norm = graph.normalized(improved=improved)
        assert torch.allclose(dense(norm, norm.weight), root[:, None] * a * root)
    mean = graph.normalized("mean")
    rows = dense(graph, graph.weight)
    assert torch.allclose(dense(mean, mean.weight), rows / rows.sum(1, keepdim=True).clamp(min=1e-300))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["mean", "symmetric"])
def test_half_weights_are_normalised_in_float32_and_rounded_once(dtype: torch.dtype, kind: Any) -> None:
    torch.manual_seed(0)
    many = 70_000  # for which float16 has no number
    ends = torch.stack([torch.arange(many), torch.zeros(many, dtype=torch.int64)])
    for weight in (torch.ones(many), torch.rand(many) + 0.5):
        given = weight.to(dtype)
        narrow, wide = (ow.Graph(ends, many, weight=w).normalized(kind) for w in (given, given.double()))
        assert narrow.weight is not None
        assert wide.weight is not None
        assert narrow.weight.dtype == dtype
        assert torch.equal(narrow.weight, wide.weight.float().to(dtype))


def test_a_half_layer_counts_many_neighbours() -> None:
    torch.manual_seed(0)
    many = 70_000
    ends = torch.stack([torch.arange(many), torch.zeros(many, dtype=torch.int64)])
    layer, x = ow.nn.GraphConv(2, 2), torch.rand(many, 2)
    expected = layer(x, ends)[0]
    torch.testing.assert_close(layer.half()(x.half(), ends)[0].float(), expected, rtol=3e-3, atol=1e-2)


def test_double_features_have_factors_in_double() -> None:
    graph = made([[0, 1, 2], [1, 1, 1]], 3)
    x = torch.eye(3, dtype=torch.float64)
    layer = ow.nn.GraphConv(3, 3, bias=False, dtype=torch.float64)
    torch.nn.init.eye_(layer.lin.weight)
    assert torch.equal(layer(x, graph)[1, 0], torch.tensor(3, dtype=torch.float64).pow(-0.5))


def test_compilers_and_exporters_take_graphs() -> None:
    class Sums(torch.nn.Module):
        def forward(self, x: Tensor, graph: ow.Graph) -> Tensor:
            return ow.spmm(x, graph, reduce="mean") + graph.num_nodes

    graph, x = made([[0, 1, 1], [2, 2, 0]], 3), torch.rand(3, 2)
    expected = Sums()(x, graph)
    compiled = torch.compile(Sums(), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, graph), expected)
    exported = torch.export.export(Sums(), (x, graph))
    other = made([[2, 1, 0], [1, 0, 0]], 3)
    assert torch.equal(exported.module()(x, other), Sums()(x, other))
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    assert torch.equal(torch.export.load(file).module()(x, other), Sums()(x, other))
