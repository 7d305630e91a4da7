"""Graphs on a GPU: every width of features, long rows, indices that must not be read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from tests.cuda import needs_gpu

pytestmark = needs_gpu

ERRORS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 1.2e-2, torch.float16: 2e-3}
WIDTHS = (1, 3, 8, 32, 64, 100, 128, 130, 256, 300)


def uniform() -> tuple[Tensor, int]:
    return torch.randint(0, 300, (2, 3000), generator=torch.Generator().manual_seed(1)).cuda(), 300


def hubs() -> tuple[Tensor, int]:
    """A row and a column with thousands of edges."""
    ends = torch.randint(0, 50, (2, 9000), generator=torch.Generator().manual_seed(2))
    ends[1, :6000], ends[0, 3000:8000] = 7, 3
    return ends.cuda(), 50


def exact(x: Tensor, ends: Tensor, nodes: int, weight: Tensor, reduce: str) -> Tensor:
    near = x[ends[0]] * weight[:, None]
    out = torch.zeros(nodes, x.shape[1], dtype=x.dtype, device=x.device)
    if reduce == "max":
        return out.scatter_reduce(0, ends[1][:, None].expand_as(near), near, "amax", include_self=False)
    out = out.index_add(0, ends[1], near)
    return out / torch.bincount(ends[1], minlength=nodes).clamp(min=1)[:, None] if reduce == "mean" else out


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("drawn", [uniform, hubs])
def test_values_and_gradients_are_those_of_float64(drawn: Any, dtype: torch.dtype, reduce: Any) -> None:
    torch.manual_seed(0)
    ends, nodes = drawn()
    graph = ow.Graph(ends, nodes)
    assert (graph.split.numel() > 0) == (drawn is hubs)
    for width in WIDTHS if dtype == torch.float32 else WIDTHS[1::3]:
        leaves = [torch.randn(nodes, width, device="cuda"), torch.rand(ends.shape[1], device="cuda")]
        leaves = [t.to(dtype).requires_grad_() for t in leaves]
        grad = torch.randn(nodes, width, device="cuda").to(dtype)
        out = ow.spmm(leaves[0], graph, leaves[1], reduce=reduce)
        got = [out, *torch.autograd.grad(out, leaves, grad)]
        wide = [t.detach().double().requires_grad_() for t in leaves]
        truth = exact(wide[0], ends, nodes, wide[1], reduce)
        for k, right in enumerate([truth, *torch.autograd.grad(truth, wide, grad.double())]):
            error = (got[k].double() - right).norm() / right.norm()
            assert error < ERRORS[dtype] * (3 if k else 1), (width, k, error)
        again = ow.spmm(leaves[0], graph, leaves[1], reduce=reduce)
        for first, second in zip(got, [again, *torch.autograd.grad(again, leaves, grad)], strict=True):
            assert torch.equal(first, second)


def test_an_index_out_of_range_is_left_out() -> None:
    x = torch.randn(6, 5, device="cuda", requires_grad=True)
    rowptr, col = (torch.tensor(values, device="cuda") for values in ([0, 2, 4], [1, 99, -5, 2]))
    out = torch.ops.opwright.spmm(x, rowptr, col)
    assert torch.equal(out, x[[1, 2]])
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.sum(1).tolist() == [0, 5, 5, 0, 0, 0]
    lying = torch.tensor([-3, 700, 1], device="cuda")
    for op in (torch.ops.opwright.spmm, torch.ops.opwright.spmm_max):
        op(x, lying, col, torch.rand(4, device="cuda"), edge=torch.tensor([0, 9, -1, 2], device="cuda"))
    split, bins = torch.tensor([[9, 0], [1, 77]], device="cuda"), torch.tensor([0, 1, 55], device="cuda")
    torch.ops.opwright.spmm(x, rowptr, col, split=split, bins=bins, piece=1)
    torch.cuda.synchronize()


LIES: dict[str, Any] = {
    "no pieces": lambda s: {**s, "split": s["split"][:0], "t_split": s["t_split"][:0]},
    "other pieces": lambda s: {**s, "split": s["split"].flip(0), "t_split": s["t_split"] + 1},
    "a piece less": lambda s: {**s, "split": s["split"][:-1], "t_split": s["t_split"][1:]},
    "pieces of one edge": lambda s: {**s, "piece": 1},
    "pieces of another size": lambda s: {**s, "piece": 300},
    "bins that fall": lambda s: {**s, "bins": s["bins"].flip(0), "t_bins": s["t_bins"] * 3 - 40},
    "one bin": lambda s: {**s, "bins": s["bins"][[0, -1]], "t_bins": s["t_bins"][[0, -1]]},
    "bins out of range": lambda s: {**s, "bins": s["bins"] - 7, "t_bins": s["t_bins"] + 2**30},
    "no bins": lambda s: {**s, "bins": None, "t_bins": s["t_bins"][:0]},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_schedule_says_who_adds_up_and_never_what(lie: str) -> None:
    """Whatever it says: nothing is left unwritten, and nothing is wrong."""
    torch.manual_seed(0)
    ends, nodes = hubs()
    graph = ow.Graph(ends, nodes)
    names = ("edge", "t_rowptr", "t_col", "t_edge", "split", "t_split", "bins", "t_bins")
    schedule = LIES[lie]({**{name: getattr(graph, name) for name in names}, "piece": 256})
    for width, op in ((33, "spmm"), (64, "spmm"), (20, "spmm_max"), (24, "sddmm")):
        x = torch.randn(nodes, width, device="cuda", requires_grad=True)
        other = torch.randn(nodes, width, device="cuda", requires_grad=True)
        weight = torch.rand(ends.shape[1], device="cuda", requires_grad=True)
        garbage = torch.full((2**22,), float("nan"), device="cuda")
        del garbage  # what is not written is then seen
        given = (x, other, graph.rowptr, graph.col) if op == "sddmm" else (x, graph.rowptr, graph.col, weight)
        leaves = [other, x] if op == "sddmm" else [weight, x]
        out = getattr(torch.ops.opwright, op)(*given, **schedule)
        wide = [t.detach().double().requires_grad_() for t in leaves]
        if op == "sddmm":
            truth = (wide[1][ends[1]] * wide[0][ends[0]]).sum(1)
        else:
            truth = exact(wide[1], ends, nodes, wide[0], "max" if op == "spmm_max" else "sum")
        grad = torch.randn_like(out)
        got = [out, *torch.autograd.grad(out, leaves, grad)]
        for k, right in enumerate([truth, *torch.autograd.grad(truth, wide, grad.double())]):
            error = (got[k].double() - right).norm() / right.norm()
            assert error < 3e-5, (op, width, k, error)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("dtype", ERRORS)
def test_relu_is_that_of_the_result(dtype: torch.dtype, reduce: Any) -> None:
    torch.manual_seed(0)
    for ends, nodes in (uniform(), hubs()):
        graph = ow.Graph(ends, nodes)
        for width in (3, 64):
            leaves = [torch.randn(nodes, width, device="cuda"), torch.randn(ends.shape[1], device="cuda")]
            leaves = [t.to(dtype).requires_grad_() for t in (*leaves, torch.randn(width, device="cuda"))]
            x, weight, bias = leaves
            out = ow.spmm(x, graph, weight, bias=bias, reduce=reduce, activation="relu")
            apart = ow.spmm(x, graph, weight, bias=bias, reduce=reduce).relu()
            assert torch.equal(out, apart)
            grad = torch.randn_like(out)
            for one, two in zip(*(torch.autograd.grad(o, leaves, grad) for o in (out, apart)), strict=True):
                assert torch.equal(one, two)


def test_strided_features_and_offsets_of_64_bits_are_taken() -> None:
    x = torch.randn(5, 6, device="cuda").t()
    rowptr, col = (torch.tensor(values, device="cuda") for values in ([0, 2, 4], [1, 0, 0, 2]))
    expected = torch.stack((x[[1, 0]].sum(0), x[[0, 2]].sum(0)))
    for index in (torch.int32, torch.int64):
        torch.testing.assert_close(torch.ops.opwright.spmm(x, rowptr.to(index), col.to(index)), expected)


def test_a_layer_trains_on_a_gpu_as_on_the_cpu() -> None:
    ends, nodes = uniform()
    layer = ow.nn.GraphConv(16, 4)
    x, weight = torch.randn(nodes, 16), torch.rand(ends.shape[1], requires_grad=True)
    here = layer(x, ends.cpu(), weight)
    (expected,) = torch.autograd.grad(here.square().sum(), weight)
    there = layer.cuda()(x.cuda(), ends, weight.cuda())
    torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-5)
    (got,) = torch.autograd.grad(there.square().sum(), weight)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
