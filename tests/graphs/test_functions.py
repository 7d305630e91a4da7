"""spmm, sddmm and graph_conv over graphs."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.ops.spmm_max.op import spmm_max
from tests.graphs.test_graph import dense, made

REDUCTIONS: tuple[Any, ...] = ("sum", "mean", "max", "min")
ORDERS: tuple[Any, ...] = ("aggregate", "transform")


def awkward() -> ow.Graph:
    """Repeated edges, a loop, a node alone, and a row that is longer than the others."""
    return made([[0, 1, 1, 3, 0, 2, 4, 3, 0], [2, 2, 0, 0, 0, 2, 2, 2, 2]], 6)


def double(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_every_reduction_differentiates_twice(reduce: Any) -> None:
    torch.manual_seed(0)
    graph, x, weight = awkward(), double(6, 3), double(9)
    torch.autograd.gradcheck(lambda x, w: ow.spmm(x, graph, w, reduce=reduce), (x, weight))
    torch.autograd.gradgradcheck(lambda x, w: ow.spmm(x, graph, w, reduce=reduce), (x, weight))


def test_products_on_edges_are_those_of_the_matrix() -> None:
    torch.manual_seed(0)
    graph, a, b = made([[0, 4, 4], [1, 1, 0]], (5, 2)), double(2, 3), double(5, 3)
    source, target = graph.edge_index
    assert torch.allclose(ow.sddmm(a, b, graph), (a @ b.t())[target, source])
    torch.autograd.gradcheck(lambda a, b: ow.sddmm(a, b, graph), (a, b))


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_relu_is_that_of_the_result(dtype: torch.dtype, reduce: Any) -> None:
    torch.manual_seed(0)
    graph = awkward()
    for width in (1, 7, 64):
        leaves = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ((6, width), (9,), (width,))]
        x, weight, bias = leaves
        out = ow.spmm(x, graph, weight, bias=bias, reduce=reduce, activation="relu")
        apart = ow.spmm(x, graph, weight, bias=bias, reduce=reduce).relu()
        assert torch.equal(out, apart)
        grad = torch.randn_like(out)
        for one, two in zip(*(torch.autograd.grad(o, leaves, grad) for o in (out, apart)), strict=True):
            assert torch.equal(one, two)


def test_relu_lets_nan_through_and_differentiates_twice() -> None:
    torch.manual_seed(0)
    graph, x, weight, bias = awkward(), double(6, 3), double(9), double(3)

    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ow.spmm(x, graph, weight, bias=bias, activation="relu")

    torch.autograd.gradgradcheck(call, (x, weight, bias))
    assert ow.spmm(torch.full((6, 9), float("nan")), graph, activation="relu")[0].isnan().all()
    compiled: Any = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, weight, bias), call(x, weight, bias))


def test_relu_alone_keeps_the_result() -> None:
    """What a gradient does not read, it does not keep."""
    graph, x = awkward(), torch.randn(6, 5, requires_grad=True)
    for activation, expected in ((None, 0), ("relu", 1)):
        kept: list[Tensor] = []

        def keep(t: Tensor, kept: list[Tensor] = kept) -> Tensor:
            kept.append(t)
            return t

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            out = ow.spmm(x, graph, activation=activation)  # type: ignore[arg-type]
        assert sum(t.shape == out.shape and t.dtype == out.dtype for t in kept) == expected, activation


def test_no_neighbours_are_zero_and_several_maxima_share() -> None:
    graph = made([[0, 1, 2], [0, 0, 0]], 3)
    x = torch.tensor([[1.0, -1.0], [1.0, -2.0], [0.0, -1.0]], requires_grad=True)
    for reduce in ("max", "min"):
        assert not ow.spmm(x, graph, reduce=reduce)[1:].any()
    (grad,) = torch.autograd.grad(ow.spmm(x, graph, reduce="max").sum(), x)
    assert grad.tolist() == [[0.5, 0.5], [0.5, 0.0], [0.0, 0.5]]
    assert torch.isnan(ow.spmm(torch.full_like(x, float("nan")), graph, reduce="max")[0]).all()


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_a_maximum_of_0_has_its_whole_gradient(reduce: Any) -> None:
    """Nothing is shared with the 0 of rows that have no edges; nor in the derivative of the reference."""
    graph = ow.Graph(torch.tensor([[0, 1], [0, 0]]), 2)
    x = torch.tensor([[0.0, 0.0], [-1.0, 0.0] if reduce == "max" else [1.0, 0.0]], requires_grad=True)
    expected = torch.tensor([[1.0, 0.5], [0.0, 0.5]])
    for way in (spmm_max, spmm_max.reference):
        out = way(x, graph.rowptr, graph.col, reduce=reduce)
        assert torch.equal(torch.autograd.grad(out.sum(), x)[0], expected)


def test_leading_dimensions_are_features() -> None:
    graph, x = awkward(), torch.randn(2, 3, 6, 4)
    bias = torch.randn(4)
    for reduce in REDUCTIONS:
        whole = ow.spmm(x, graph, reduce=reduce)
        assert torch.allclose(whole[1, 2], ow.spmm(x[1, 2], graph, reduce=reduce))
    assert torch.allclose(ow.spmm(x, graph, bias=bias)[0, 1], ow.spmm(x[0, 1], graph) + bias)
    weight = torch.randn(4, 5)
    for order in ORDERS:
        out = ow.graph_conv(x, weight, torch.ones(5), graph, order=order)
        assert torch.allclose(out[1, 0], ow.graph_conv(x[1, 0], weight, torch.ones(5), graph), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precisions_are_added_up_in_float32(dtype: torch.dtype) -> None:
    """4096 ones and a half: in bfloat16 a sum would stop at 256."""
    graph = ow.Graph(torch.stack((torch.arange(4096), torch.zeros(4096, dtype=torch.int64))), (4096, 1))
    x = torch.ones(4096, 9, dtype=dtype, requires_grad=True)
    weight = torch.full((4096,), 0.5, requires_grad=True)  # float32 beside half
    out = ow.spmm(x, graph, weight)
    assert out.dtype == dtype
    assert (out == 2048).all()
    grad_x, grad_weight = torch.autograd.grad(out.sum(), (x, weight))
    assert (grad_x.dtype, grad_weight.dtype) == (dtype, torch.float32)
    assert (grad_weight == 9).all()


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_a_long_row_is_summed_in_pieces(reduce: Any) -> None:
    """A million numbers one after another are off by 3e-5; with full vectors of features and with what is left."""
    count = 1_000_000
    graph = ow.Graph.from_csr(torch.tensor([0, count]), torch.arange(count), count)
    x = torch.rand(count, 17, generator=torch.Generator().manual_seed(0))
    expected = x.double().sum(0, keepdim=True) / (count if reduce == "mean" else 1)
    torch.testing.assert_close(ow.spmm(x, graph, reduce=reduce).double(), expected, rtol=8e-6, atol=0)


def test_a_convolution_is_the_product_of_three_matrices() -> None:
    torch.manual_seed(0)
    graph, x, weight, bias, edge = awkward(), double(6, 4), double(4, 3), double(3), double(9)
    a = torch.zeros(6, 6, dtype=torch.float64).index_put(
        (graph.edge_index[1], graph.edge_index[0]), edge, accumulate=True
    )
    for order in ORDERS:
        out = ow.graph_conv(x, weight, bias, graph, edge, order=order)
        assert torch.allclose(out, a @ x @ weight + bias)
        assert torch.allclose(ow.graph_conv(x, weight, bias, a, order=order), out)
        relu = ow.graph_conv(x, weight, bias, graph, edge, order=order, activation="relu")
        assert torch.equal(relu, out.relu())
        leaves = (x, weight, bias, edge)
        grads = torch.autograd.grad(relu.square().sum(), leaves)
        expected = torch.autograd.grad((a @ x @ weight + bias).relu().square().sum(), leaves, retain_graph=True)
        for got, right in zip(grads, expected, strict=True):
            assert torch.allclose(got, right)
    for order in ORDERS:
        torch.autograd.gradgradcheck(
            lambda x, w, e, order=order: ow.graph_conv(x, w, None, graph, e, order=order, reduce="mean"),
            (x, weight, edge),
        )


def first(inputs: int, outputs: int, *, learns: tuple[bool, bool] = (False, False), force: Any = "auto") -> str:
    graph = awkward()
    x, weight = torch.rand(6, inputs, requires_grad=learns[0]), torch.rand(inputs, outputs, requires_grad=learns[1])
    return ow.explain(ow.graph_conv, x, weight, None, graph, order=force).runs


def test_the_cheaper_order_is_taken_and_explained() -> None:
    assert first(2, 9) == "(A X) W"
    assert first(9, 2) == "A (X W)"
    # A gradient of the weight alone walks the edges a second time after A (X W), and not after (A X) W.
    assert first(10, 8) == "A (X W)"
    assert first(10, 8, learns=(False, True)) == "(A X) W"
    assert first(10, 8, learns=(True, True)) == "A (X W)"
    assert first(9, 2, force="aggregate") == "(A X) W"
    text = str(ow.explain(ow.graph_conv, torch.rand(6, 2), torch.rand(2, 9), None, awkward()))
    assert "moves less: (A X) W" in text
    assert "spmm forward" in text
    dense_a = ow.explain(ow.graph_conv, torch.rand(6, 2), torch.rand(2, 9), None, torch.rand(6, 6))
    assert dense_a.runs == "(A X) W"


X, W = torch.rand(6, 2), torch.rand(2, 2)
spmm: Any = ow.spmm  # any arguments
graph_conv: Any = ow.graph_conv
BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda g: spmm(torch.rand(5, 2), g), ValueError, "spmm: x must have shape [..., 6, features]"),
    (lambda g: spmm(torch.rand(6), g), ValueError, "got (6,)"),
    (lambda g: spmm(X, torch.eye(6)), TypeError, "spmm: graph must be an ow.Graph, got Tensor"),
    (lambda g: spmm(X, g, torch.rand(8)), ValueError, "spmm: weight must have shape (9,), one"),
    (lambda g: spmm(X, g, reduce="prod"), ValueError, "reduce must be 'sum', 'mean', 'max' or 'min'"),
    (lambda g: spmm(X, g, reduce="max", bias=torch.rand(2)), ValueError, "bias is for sums and means"),
    (lambda g: spmm(X, g, reduce="max", activation="relu"), ValueError, "activation is for sums and means"),
    (lambda g: spmm(X, g, activation="elu"), ValueError, "spmm: activation must be 'relu' or None"),
    (lambda g: spmm(X, g, torch.rand(9).double()), ValueError, "weight must be float32, as x is, got fl"),
    (lambda g: spmm(torch.ones(6, 2, dtype=torch.int64), g), NotImplementedError, "x must be a floating-point tensor"),
    (lambda g: spmm(torch.rand(6, 2, device="meta"), g), ValueError, "x is on meta and the graph on cpu"),
    (lambda g: ow.sddmm(X, torch.rand(6, 3), g), ValueError, "sddmm: a must have shape (6, 3), got"),
    (lambda g: graph_conv(X, torch.rand(3, 2), None, g), ValueError, "weight must have shape [2, out]"),
    (lambda g: graph_conv(X, W, torch.rand(3), g), ValueError, "bias must have shape (2,)"),
    (lambda g: graph_conv(torch.rand(4, 2), W, None, g), ValueError, "x must have shape [..., 6, in]"),
    (lambda g: graph_conv(X, W, None, torch.eye(6).to_sparse()), ValueError, "from_s"),
    (lambda g: graph_conv(X, W, None, [1]), TypeError, "or a dense matrix, got list"),
    (lambda g: graph_conv(X, W, None, g, order="both"), ValueError, "order must be 'auto'"),
    (lambda g: graph_conv(X, W, None, g, activation="elu"), ValueError, "activation must be"),
    (lambda g: graph_conv(X, W.double(), None, g), ValueError, "weight must be float32, as x is, got float64"),
    (lambda g: graph_conv(X, W, W[0].double(), g, order="aggregate"), ValueError, "graph_conv: bias must be float32"),
    (lambda g: graph_conv(X[None], W, W[0].double(), g, order="aggregate"), ValueError, "bias must be float32, as x"),
    (lambda g: graph_conv(X, W, W[0].double(), g, order="transform"), ValueError, "graph_conv: bias must be float32"),
    (lambda g: graph_conv(X, W, [0.0, 0.0], g), ValueError, "graph_conv: bias must have shape (2,), got list"),
    (lambda g: graph_conv(X, W, None, torch.eye(6).double()), ValueError, "graph_conv: graph must be float32, as x is"),
    (lambda g: graph_conv(X, W.to("meta"), None, g), ValueError, "graph_conv: weight is on meta and x on cpu"),
    (lambda g: graph_conv(X, W, W[0].to("meta"), g), ValueError, "graph_conv: bias is on meta and x on cpu"),
    (lambda g: graph_conv(X, W, None, torch.eye(6, device="meta")), ValueError, "graph is on meta and x on cpu"),
    (lambda g: graph_conv(X.to("meta"), W, None, g), ValueError, "graph_conv: x is on meta and the graph on cpu"),
    (lambda g: spmm(X[None].repeat(4, 1, 1), g, bias=torch.rand(3)), ValueError, "bias must have shape (2,), got (3,)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "says"), BAD)
def test_bad_calls_are_refused_by_name(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as raised:
        call(awkward())
    assert says in str(raised.value), raised.value


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("lead", [(), (2,)])
def test_a_bias_of_float32_stands_beside_bfloat16_in_either_order(order: Any, lead: tuple[int, ...]) -> None:
    x, weight, bias = torch.randn(*lead, 6, 2).bfloat16(), torch.randn(2, 3).bfloat16(), torch.randn(3)
    for graph in (awkward(), dense(awkward()).bfloat16()):
        out = ow.graph_conv(x, weight, bias, graph, order=order)
        assert out.dtype == torch.bfloat16
        expected = dense(awkward()) @ x.double() @ weight.double() + bias.double()
        torch.testing.assert_close(out.double(), expected, rtol=3e-2, atol=0.1)


@pytest.mark.parametrize("rows", [1, 19_999, 20_001])
def test_a_raw_gradient_of_relu_wants_a_result_as_large_as_itself(rows: int) -> None:
    """A kernel that trusted it would read far beyond it."""
    nodes = 20_000
    graph = ow.Graph(torch.randint(0, nodes, (2, 50)), nodes)
    grad, x = torch.rand(nodes, 2), torch.rand(nodes, 2)
    for wrong in ((grad, torch.rand(rows, 2)), (torch.rand(rows, 2), grad)):
        with pytest.raises(ValueError, match=rf"must have shape \(20000, 2\).*got \({rows}, 2\)"):
            torch.ops.opwright.spmm_backward(*wrong, x, graph.rowptr, graph.col, relu=True, wanted=[True, False, False])


def test_raw_calls_are_looked_at_on_the_cpu() -> None:
    x = torch.rand(3, 2)
    rowptr, col = torch.tensor([0, 1, 3]), torch.tensor([2, 0, 1])
    for bad_rowptr, bad_col, says in (
        (rowptr, torch.tensor([2, 0, 3]), "spmm: col must lie in [0, 3), got 3"),
        (rowptr, torch.tensor([2, 0, 2**32]), "spmm: col must lie in [0, 3), got 4294967296"),
        (torch.tensor([0, 4, 3]), col, "spmm: rowptr must not decrease"),
        (torch.tensor([0, 1, 2**32 + 3]), col, "spmm: rowptr must go from 0 to the 3 edges"),
    ):
        with pytest.raises(RuntimeError) as raised:
            torch.ops.opwright.spmm(x, bad_rowptr, bad_col)
        assert says in str(raised.value)
    x.requires_grad_()
    out = torch.ops.opwright.spmm(
        x, rowptr, col, t_rowptr=torch.tensor([0, 1, 2, 3]), t_col=torch.tensor([1, 9, 0]), t_edge=col
    )
    with pytest.raises(RuntimeError, match="t_col must lie in"):
        out.sum().backward()


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_of_the_size_of_edges_times_features_is_made(order: Literal["aggregate", "transform"]) -> None:
    """The largest tensor of a call with many edges and few nodes, forward and backward."""
    from opwright.kit.bench.memory import peak_bytes

    torch.manual_seed(0)
    edges, nodes, features = 40_000, 50, 32
    graph = ow.Graph(torch.randint(0, nodes, (2, edges)), nodes)
    x, weight, edge = torch.rand(nodes, features), torch.rand(features, features), torch.rand(edges)
    leaves = [t.requires_grad_() for t in (x, weight, edge)]

    def call() -> Any:
        return torch.autograd.grad(ow.graph_conv(x, weight, None, graph, edge, order=order).sum(), leaves)

    call()
    assert peak_bytes(call, torch.device("cpu")) < edges * features * 4 / 4


def test_torch_func_and_autocast_take_graphs() -> None:
    graph, x, weight = awkward(), torch.randn(6, 4), torch.randn(4, 3)
    whole = torch.func.vmap(lambda x: ow.spmm(x, graph))(torch.stack((x, 2 * x)))
    assert torch.allclose(whole[1], 2 * ow.spmm(x, graph), atol=1e-6)
    jvp: Any = torch.func.jvp
    _, tangent = jvp(lambda x: ow.graph_conv(x, weight, None, graph), (x,), (x,))
    assert torch.allclose(tangent, ow.graph_conv(x, weight, None, graph), atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = ow.graph_conv(x, weight, torch.zeros(3), graph, torch.rand(9), order="transform")
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("lead", [(), (2,)])
def test_autocast_takes_weights_of_any_dtype_in_either_order(order: Any, lead: tuple[int, ...]) -> None:
    graph, x, weight, bias = awkward(), torch.randn(*lead, 6, 4), torch.randn(4, 3), torch.randn(3)
    expected = ow.graph_conv(x, weight, bias, graph, torch.ones(9))
    for dtype in (torch.float32, torch.bfloat16):
        edge = torch.ones(9, dtype=dtype, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = ow.graph_conv(x, weight, bias, graph, edge, order=order)
        assert out.dtype == torch.bfloat16
        torch.testing.assert_close(out.float(), expected, rtol=5e-2, atol=0.2)
        out.float().sum().backward()
        assert edge.grad is not None
        assert edge.grad.dtype == dtype


def test_explain_takes_leading_dimensions_as_a_call_does() -> None:
    graph, x = awkward(), torch.rand(2, 6, 4)
    explained = ow.explain(ow.spmm, x, graph, bias=torch.rand(4))
    assert (explained.runs, explained.error) == ("cpu.cpp", None)
    for order in ORDERS:
        assert ow.explain(ow.graph_conv, x, torch.rand(4, 3), None, graph, order=order).error is None


def test_the_check_and_explain_know_the_functions() -> None:
    graph, x = awkward(), torch.rand(6, 2, requires_grad=True)
    assert ow.explain(ow.spmm, x, graph).runs == "cpu.cpp"
    assert ow.explain(ow.spmm).schema == ow.explain(ow.spmm, x, graph).schema
    with pytest.raises(TypeError, match="what graph_conv runs depends on its arguments, x, weight, bias, graph"):
        ow.explain(ow.graph_conv)
    with pytest.raises(TypeError, match="got GraphConv; of a module, explain the operator that it calls"):
        ow.explain(ow.nn.GraphConv(2, 2), x, graph)  # type: ignore[arg-type]
    assert ow.explain(ow.spmm, x, graph, reduce="max").schema.startswith("spmm_max(")
    assert ow.explain(ow.sddmm, x, x, graph).runs == "cpu.cpp"
    assert torch.allclose(ow.spmm(x.double(), graph), dense(graph) @ x.double())


def test_a_dense_matrix_on_meta_has_a_shape() -> None:
    x, weight, graph = (torch.empty(3, 3, device="meta") for _ in range(3))
    assert ow.graph_conv(x, weight, None, graph).shape == (3, 3)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse (CSR|invariant)")
def test_sparse_features_are_multiplied_first_or_refused_by_name(layout: torch.layout) -> None:
    torch.manual_seed(0)
    graph, x, weight = awkward(), torch.randn(6, 3).relu().double(), double(3, 8)
    out = ow.graph_conv(x.to_sparse(layout=layout), weight, None, graph)
    wanted = dense(graph) @ x @ weight
    torch.testing.assert_close(out, wanted)
    go = torch.randn_like(out)
    for found, exact in zip(*(torch.autograd.grad(y, weight, go) for y in (out, wanted)), strict=True):
        torch.testing.assert_close(found, exact)
    calls: tuple[Any, ...] = (
        lambda s: ow.spmm(s, graph),
        lambda s: ow.spmm(s, graph, reduce="max"),
        lambda s: ow.graph_conv(s, weight, None, graph, order="aggregate"),
    )
    for call in calls:
        with pytest.raises(TypeError, match="spmm: x must be a dense tensor, got sparse_"):
            call(x.to_sparse(layout=layout))
    with pytest.raises(TypeError, match="sddmm: a must be a dense tensor, got sparse_"):
        ow.sddmm(x.to_sparse(layout=layout), x, graph)
