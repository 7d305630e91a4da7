"""spmm, spmm_max and sddmm as a GPU computes them: every width, long rows, indices that must not be read."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.check.layouts import LAYOUTS
from tests import emulated
from tests.cuda.test_graphs import ERRORS, LIES, WIDTHS, exact

NAMES = ("edge", "t_rowptr", "t_col", "t_edge", "split", "t_split", "bins", "t_bins")
FAR = 2**31 - 1
"""An index where there is no memory: who reads there does not come back."""


def uniform() -> tuple[Tensor, int]:
    return torch.randint(0, 150, (2, 1500), generator=torch.Generator().manual_seed(1)), 150


def hubs() -> tuple[Tensor, int]:
    """A row and a column with more than a thousand edges, some with hundreds, and nodes without any."""
    ends = torch.randint(0, 45, (2, 4000), generator=torch.Generator().manual_seed(2))
    ends[1, :1900], ends[0, 1200:2600] = 7, 3
    for k, node in enumerate((10, 11, 12)):
        ends[1, 1900 + 300 * k : 2200 + 300 * k], ends[0, 3700 - 300 * k : 4000 - 300 * k] = node, 30 + node
    return ends, 50


def pattern(graph: ow.Graph) -> dict[str, Any]:
    return {**{name: getattr(graph, name) for name in NAMES}, "piece": 256}


def called(ops: Any, reduce: str, x: Tensor, graph: ow.Graph, weight: Tensor | None = None, **more: Any) -> Tensor:
    op = ops.spmm_max if reduce == "max" else ops.spmm
    result: Tensor = op(x, graph.rowptr, graph.col, weight, reduce=reduce, **pattern(graph), **more)
    return result


def off(got: Tensor, want: Tensor) -> float:
    return float((got.detach().double() - want.detach()).norm() / want.detach().norm())


SLOW = (torch.float64, torch.float16)
DTYPES = [pytest.param(d, marks=pytest.mark.slow if d in SLOW else (), id=str(d)) for d in ERRORS]


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("drawn", [uniform, hubs])
def test_values_and_gradients_are_those_of_float64(
    ops: Any, drawn: Any, dtype: torch.dtype, reduce: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, nodes = drawn()
    graph = ow.Graph(ends, nodes)
    assert (graph.split.numel() > 0) == (drawn is hubs)
    for width in WIDTHS if dtype == torch.float64 else (1, 64, 130):
        leaves = [t.to(dtype).requires_grad_() for t in (torch.randn(nodes, width), torch.rand(ends.shape[1]))]
        grad = torch.randn(nodes, width).to(dtype)
        wide = [t.detach().double().requires_grad_() for t in leaves]
        truth = exact(wide[0], ends, nodes, wide[1], reduce)
        want = [truth, *torch.autograd.grad(truth, wide, grad.double())]
        found = []
        for seed in ("0", "5"):
            monkeypatch.setenv("EMULATED_SEED", seed)
            out = called(ops, reduce, leaves[0], graph, leaves[1])
            found.append([out, *torch.autograd.grad(out, leaves, grad)])
        for k, (got, right, again) in enumerate(zip(found[0], want, found[1], strict=True)):
            assert off(got, right) < ERRORS[dtype] * (3 if k else 1), (width, k)
            assert torch.equal(got, again), (width, k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_features_may_lie_anywhere_and_be_any_number(ops: Any, dtype: torch.dtype) -> None:
    ends, nodes = hubs()
    graph = ow.Graph(ends, nodes)
    whole = torch.randn(nodes + 1, 200).to(dtype)
    for x in (
        whole[1:, 3:67],  # rows of 64 that do not begin where 16 bytes do
        whole[1:, 8:72],
        whole[1:, :64:2],
        whole[:50].t().contiguous().t()[:, :5],
        whole[0, :64].expand(50, 64),
        whole[1:, :0],
    ):
        assert torch.allclose(
            called(ops, "sum", x, graph).double(), exact(x.double(), ends, nodes, torch.ones(ends.shape[1]), "sum"),
            rtol=8 * ERRORS[dtype], atol=8 * ERRORS[dtype] * 80,
        )  # fmt: skip


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_relu_is_that_of_the_result(ops: Any, dtype: torch.dtype, reduce: str) -> None:
    for ends, nodes in (uniform(), hubs()):
        graph = ow.Graph(ends, nodes)
        for width in (3, 64):
            leaves = [torch.randn(nodes, width), torch.randn(ends.shape[1]), torch.randn(width)]
            x, weight, bias = (t.to(dtype).requires_grad_() for t in leaves)
            out, apart = (called(ops, reduce, x, graph, weight, bias=bias, relu=relu) for relu in (True, False))
            assert torch.equal(out, apart.relu())
            grad = torch.randn_like(out)
            given = x, weight, bias
            for one, two in zip(*(torch.autograd.grad(o, given, grad) for o in (out, apart.relu())), strict=True):
                assert torch.equal(one, two)


def test_products_are_those_of_the_edges(ops: Any, seed: int) -> None:
    ends, nodes = hubs()
    graph = ow.Graph(ends, nodes)
    for width in (1, 24, 130):
        a, b = (torch.randn(nodes, width, requires_grad=True) for _ in range(2))
        got = ops.sddmm(a, b, graph.rowptr, graph.col, **pattern(graph))
        wide = [t.detach().double().requires_grad_() for t in (a, b)]
        want = (wide[0][ends[1]] * wide[1][ends[0]]).sum(1)
        grad = torch.randn_like(got)
        assert off(got, want) < 1e-5
        grads = torch.autograd.grad(got, (a, b), grad), torch.autograd.grad(want, wide, grad.double())
        assert all(off(p, q) < 3e-5 for p, q in zip(*grads, strict=True))


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_an_index_out_of_range_is_left_out_and_not_read(ops: Any, index: torch.dtype, seed: int) -> None:
    """Also one that 32 bits would make another index of."""
    x = torch.randn(6, 5, requires_grad=True)
    lying = [1, FAR, -FAR, 2] if index == torch.int32 else [1, 2**32 + 1, -(2**32) + 1, 2]
    rowptr, col = torch.tensor([0, 2, 4], dtype=index), torch.tensor(lying, dtype=index)
    for op in (ops.spmm, ops.spmm_max):
        out = op(x, rowptr, col)
        assert torch.equal(out, x[[1, 2]])
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert grad.sum(1).tolist() == [0, 5, 5, 0, 0, 0]
    assert ops.sddmm(torch.ones(2, 5), torch.ones(6, 5), rowptr, col).tolist() == [5, 0, 0, 5]
    weight = torch.rand(4, requires_grad=True)
    edge = torch.tensor([0, FAR, -1 if index == torch.int32 else -(2**40), 2], dtype=index)
    offsets = torch.tensor([-3, FAR, 1], dtype=index)
    for op in (ops.spmm, ops.spmm_max):
        op(x, offsets, col, weight, edge=edge).sum().backward()
    split, bins = torch.tensor([[9, 0], [1, 77]], dtype=index), torch.tensor([0, 1, 55], dtype=index)
    for piece in (1, 2, FAR):
        assert torch.equal(ops.spmm(x, rowptr, col, split=split, bins=bins, piece=piece), x[[1, 2]])


def test_a_lying_edge_of_a_long_row_is_left_out(ops: Any) -> None:
    ends, nodes = hubs()
    graph = ow.Graph(ends, nodes)
    col, weight = graph.col.clone(), torch.rand(ends.shape[1], requires_grad=True)
    col[100::7] = FAR
    kept = torch.ones(ends.shape[1])
    kept[100::7] = 0
    rows = torch.repeat_interleave(graph.rowptr.diff())
    edge = graph.edge if graph.edge is not None else torch.arange(ends.shape[1])
    x = torch.randn(nodes, 20, requires_grad=True)
    out = ops.spmm(x, graph.rowptr, col, weight, edge=graph.edge, split=graph.split, bins=graph.bins, piece=256)
    factor = (weight[edge.long()] * kept).double()
    near = x.double()[col.long().clamp(max=nodes - 1)] * factor[:, None]
    want = torch.zeros(nodes, 20, dtype=torch.float64).index_add(0, rows, near)
    assert off(out, want) < 1e-5
    grad = torch.randn_like(out)
    pairs = zip(*(torch.autograd.grad(o, (x, weight), g) for o, g in ((out, grad), (want, grad.double()))), strict=True)
    assert all(off(p, q.double()) < 3e-5 for p, q in pairs)


@pytest.mark.parametrize("lie", LIES)
def test_a_schedule_says_who_adds_up_and_never_what(ops: Any, lie: str) -> None:
    """Whatever it says: nothing is left unwritten, and nothing is wrong."""
    ends, nodes = hubs()
    graph = ow.Graph(ends, nodes)
    schedule = LIES[lie](pattern(graph))
    for width, name in ((33, "spmm"), (64, "spmm"), (20, "spmm_max"), (24, "sddmm")):
        x, other = (torch.randn(nodes, width, requires_grad=True) for _ in range(2))
        weight = torch.rand(ends.shape[1], requires_grad=True)
        leaves = [other, x] if name == "sddmm" else [weight, x]
        given = (x, other, graph.rowptr, graph.col) if name == "sddmm" else (x, graph.rowptr, graph.col, weight)
        out = getattr(ops, name)(*given, **schedule)
        wide = [t.detach().double().requires_grad_() for t in leaves]
        if name == "sddmm":
            truth = (wide[1][ends[1]] * wide[0][ends[0]]).sum(1)
        else:
            truth = exact(wide[1], ends, nodes, wide[0], "max" if name == "spmm_max" else "sum")
        grad = torch.randn_like(out)
        got = [out, *torch.autograd.grad(out, leaves, grad)]
        for k, right in enumerate([truth, *torch.autograd.grad(truth, wide, grad.double())]):
            assert off(got[k], right) < 3e-5, (name, width, k)


def test_rows_may_be_any_distance_apart(ops: Any) -> None:
    """A kernel counts the bytes of a row with 32 bits: what lies further apart is copied."""
    x = torch.randn(6, 5)
    far = LAYOUTS["far"](x, random.Random(0))
    if far.stride(0) < 2**31:
        pytest.skip("this machine lends no address space without memory behind it")
    index = torch.tensor([0, 2, 2, 5]), torch.tensor([1, 5, 0, 2, 3])
    for op in (ops.spmm, ops.spmm_max):
        assert torch.equal(op(far, *index), op(x, *index))
    assert torch.equal(ops.sddmm(far[:3], far, *index), ops.sddmm(x[:3], x, *index))
    weight, grad = torch.rand(5, requires_grad=True), LAYOUTS["far"](torch.randn(3, 5), random.Random(0))
    for op in (ops.spmm, ops.spmm_max):
        leaves = [[t.detach().requires_grad_(), weight] for t in (far, x)]
        found = [torch.autograd.grad(op(t, *index, w), (t, w), grad) for t, w in leaves]
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["spmm", "spmm_max", "sddmm"])
def test_every_property_holds_that_tells_something_here(ops: Any, name: str) -> None:
    report = ow.check(getattr(ops, name), only=["forward", "gradients", "special", "memory", "determinism", "vmap"])
    assert report.passed, str(report)


WIDE = {
    "offsets of 64 bits": {"INT32_MAX - 4096 ?": "0 ?"},
    "weights put in order": {"many_edges = 1 << 20": "many_edges = 1 << 6"},
    "a small cache": {"60 << 20": "6 << 10"},
}
"""What a graph would need gigabytes for, with fewer."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", WIDE)
def test_a_graph_that_is_too_large_for_here_is_right(case: str, tmp_path: Path) -> None:
    space = f"emulated_{case.split()[-1]}"
    made = emulated.operators(tmp_path, "spmm", "spmm_max", namespace=space, changes=WIDE[case])
    for ends, nodes in (uniform(), hubs()):
        graph = ow.Graph(ends, nodes)
        for reduce in ("sum", "mean", "max"):
            for dtype in ERRORS:
                for width in (5, 64, 256):
                    leaves = [torch.randn(nodes, width), torch.rand(ends.shape[1])]
                    leaves = [t.to(dtype).requires_grad_() for t in leaves]
                    out = called(made, reduce, leaves[0], graph, leaves[1])
                    wide = [t.detach().double().requires_grad_() for t in leaves]
                    truth = exact(wide[0], ends, nodes, wide[1], reduce)
                    grad = torch.randn_like(out)
                    got = [out, *torch.autograd.grad(out, leaves, grad)]
                    for k, right in enumerate([truth, *torch.autograd.grad(truth, wide, grad.double())]):
                        assert off(got[k], right) < ERRORS[dtype] * 3, (reduce, dtype, width, k)
