"""The graph convolution, and the order in which it is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from opwright.graphs.graph import Graph
from opwright.graphs.neighbours import autocasts, gathered, refuse_device, spmm
from opwright.kit.explain import Explanation, Step
from opwright.kit.explain import explain as explain_op
from opwright.kit.spec.require import spell
from opwright.ops.spmm.pattern import sums_in

Order = Literal["auto", "aggregate", "transform"]
FORMULAS = {"aggregate": "(A X) W", "transform": "A (X W)"}


def graph_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    graph: Graph | Tensor,
    edge_weight: Tensor | None = None,
    *,
    reduce: Literal["sum", "mean"] = "sum",
    activation: Literal["relu"] | None = None,
    order: Order = "auto",
) -> Tensor:
    """A X W + b over a graph.

    A is the graph's matrix: `A[i, j]` is the weight of the edge from j to i, 1 by default. The order of the two
    products is the cheaper one by the bytes they move, forward and, where a gradient will be wanted, backward;
    `ow.explain` shows them.

    Args:
        x: `[sources, in]`, or `[..., sources, in]`
        weight: `[in, out]`
        bias: `[out]`, or None
        graph: an `ow.Graph`, or A itself, a dense matrix `[targets, sources]`
        edge_weight: `[edges]`, in the order of the graph's `edge_index`; by default the graph's own, if it has any
        reduce: `"sum"`, or `"mean"`, which divides by the number of edges
        activation: `"relu"`, or None
        order: `"aggregate"` for (A X) W, `"transform"` for A (X W), `"auto"` for the cheaper one

    Differentiable: x, weight, bias, edge_weight, a dense A, any number of times.

    >>> import torch, opwright as ow
    >>> graph = ow.Graph(torch.tensor([[0, 1], [1, 1]]), 2)
    >>> ow.graph_conv(torch.eye(2), torch.tensor([[1.0], [2.0]]), torch.tensor([0.5]), graph)
    tensor([[0.5000],
            [3.5000]])
    """
    _refuse(x, weight, bias, graph, edge_weight, reduce, activation)
    first = chosen(x, weight, graph, order)
    if not isinstance(graph, Graph):
        out = torch.matmul(graph @ x, weight) if first == "aggregate" else graph @ (x @ weight)
        out = out if bias is None else out + bias.to(out.dtype)
    elif first == "aggregate":
        near = gathered(x, graph, edge_weight, reduce, None, None)
        if bias is None or near.dim() > 2:
            out = near @ weight
            out = out if bias is None else out + bias.to(out.dtype)
        else:
            out = torch.addmm(bias if bias.dtype == near.dtype else bias.to(near.dtype), near, weight)
    else:
        return gathered(x @ weight, graph, edge_weight, reduce, bias, activation)
    return out if activation is None else torch.relu_(out)


@dataclass(frozen=True)
class Cost:
    """What an order moves, in bytes."""

    order: str
    bytes: int


def costs(x: Tensor, weight: Tensor, graph: Graph | Tensor) -> tuple[Cost, Cost]:
    """What both orders move."""
    aggregate, transform = _moved(x, weight, graph)
    return Cost("aggregate", aggregate), Cost("transform", transform)


def _moved(x: Tensor, weight: Tensor, graph: Graph | Tensor) -> tuple[int, int]:
    """Bytes of (A X) W and of A (X W), in plain numbers, which every call asks for. An edge moves a row of features,
    there and for a gradient back: of x where x gets one, of the transformed x where x or the weight does. A product
    moves its rows."""
    inputs, outputs = weight.shape
    back = any_back = False
    if torch.is_grad_enabled():
        back = x.requires_grad
        any_back = back or weight.requires_grad
    if isinstance(graph, Graph):
        targets, sources, edges = graph.num_targets, graph.num_sources, graph.num_edges
    else:
        targets, sources = graph.shape
        edges = targets * sources
    size = x.itemsize * (x.numel() // max(sources * inputs, 1) if x.dim() > 2 else 1)
    width = inputs + outputs
    return (
        size * ((1 + back) * edges * inputs + (1 + any_back) * targets * width),
        size * ((1 + any_back) * edges * outputs + (1 + any_back) * sources * width),
    )


def chosen(x: Tensor, weight: Tensor, graph: Graph | Tensor, order: str = "auto") -> str:
    """The order that a call takes. Of two that move as much, the one that keeps less for the gradient. A sparse x
    becomes dense by its product with the weight."""
    if order in FORMULAS:
        return order
    if order != "auto":
        raise ValueError(f"graph_conv: order must be 'auto', 'aggregate' or 'transform', got {order!r}")
    if x.layout != torch.strided:
        return "transform"
    aggregate, transform = _moved(x, weight, graph)
    return "aggregate" if aggregate < transform else "transform"


def _refuse(x: Any, weight: Any, bias: Any, graph: Any, edge_weight: Any, reduce: Any, activation: Any) -> None:
    if not isinstance(x, Tensor) or not isinstance(weight, Tensor):
        name, value = ("weight", weight) if isinstance(x, Tensor) else ("x", x)
        raise TypeError(f"graph_conv: {name} must be a Tensor, got {type(value).__name__}")
    if isinstance(graph, Graph):
        sources, index = graph.num_sources, graph.col
    elif isinstance(graph, Tensor):
        if graph.layout != torch.strided or graph.dim() != 2:
            kind = spell(graph.layout) if graph.layout != torch.strided else tuple(graph.shape)
            raise ValueError(
                f"graph_conv: graph must be an ow.Graph or a dense matrix, got {kind}; "
                "ow.Graph.from_sparse reads sparse ones"
            )
        if edge_weight is not None or reduce != "sum":
            raise ValueError("graph_conv: a dense matrix has its weights in it: leave out edge_weight and reduce")
        sources, index = graph.shape[1], graph
    else:
        raise TypeError(f"graph_conv: graph must be an ow.Graph or a dense matrix, got {type(graph).__name__}")
    shape, out = x.shape, weight.shape
    if len(shape) < 2 or shape[-2] != sources:
        raise ValueError(
            f"graph_conv: x must have shape [..., {sources}, in], a row for each source of the graph, "
            f"got {tuple(shape)}"
        )
    if len(out) != 2 or out[0] != shape[-1]:
        raise ValueError(f"graph_conv: weight must have shape [{shape[-1]}, out] to fit x, got {tuple(out)}")
    if bias is not None and (not isinstance(bias, Tensor) or bias.shape != out[1:]):
        got = tuple(bias.shape) if isinstance(bias, Tensor) else type(bias).__name__
        raise ValueError(f"graph_conv: bias must have shape ({out[1]},), got {got}")
    dtype, device = x.dtype, x.device
    if (
        index.device != device
        or weight.dtype != dtype
        or weight.device != device
        or (bias is not None and (bias.dtype != dtype or bias.device != device))
        or index is graph
    ):
        _refuse_mixed(x, graph, weight=weight, bias=bias)
    if reduce not in ("sum", "mean"):
        raise ValueError(f"graph_conv: reduce must be 'sum' or 'mean', got {reduce!r}")
    if activation not in (None, "relu"):
        raise ValueError(f"graph_conv: activation must be 'relu' or None, got {activation!r}")


def _refuse_mixed(x: Tensor, graph: Graph | Tensor, **beside: Tensor | None) -> None:
    """Raise where devices differ, and where dtypes do: all have that of x, and a bias may be float32 beside half and
    bfloat16. Autocast brings dtypes together."""
    if isinstance(graph, Graph):
        refuse_device("graph_conv", x, graph)
    else:
        beside["graph"] = graph
    autocast = autocasts(x)
    for name, value in beside.items():
        if value is None:
            continue
        if value.device != x.device:
            raise ValueError(f"graph_conv: {name} is on {spell(value.device)} and x on {spell(x.device)}")
        wide = sums_in(x.dtype) if name == "bias" else x.dtype
        if value.dtype not in (x.dtype, wide) and not autocast:
            also = "" if wide == x.dtype else f" or {spell(wide)}"
            raise ValueError(f"graph_conv: {name} must be {spell(x.dtype)}, as x is{also}, got {spell(value.dtype)}")


def _explain(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    graph: Graph | Tensor,
    edge_weight: Tensor | None = None,
    *,
    reduce: Literal["sum", "mean"] = "sum",
    activation: Literal["relu"] | None = None,
    order: Order = "auto",
) -> Explanation:
    """Which order a graph convolution takes and what both would move, then what its sum over neighbours runs."""
    _refuse(x, weight, bias, graph, edge_weight, reduce, activation)
    first = chosen(x, weight, graph, order)
    moved = ", ".join(f"{FORMULAS[c.order]} {c.bytes / 1e6:,.3g} MB" for c in costs(x, weight, graph))
    why = f"asked for; moved are: {moved}" if order != "auto" else f"moves less: {moved}"
    steps = [Step("order", FORMULAS[first], why)]
    over = repr(graph) if isinstance(graph, Graph) else "dense A"
    shown = f"graph_conv(x={tuple(x.shape)}, weight={tuple(weight.shape)}, {over})"
    if isinstance(graph, Tensor):
        return Explanation(shown, "graph_conv", (*steps, Step("products", "torch.matmul", "A is dense")))
    rows = x if first == "aggregate" else (x @ weight if x.device.type != "meta" else x)
    inner = explain_op(spmm, rows, graph, edge_weight, reduce=reduce)
    steps += [Step(f"spmm {s.name}", s.runs, s.why) for s in inner.steps]
    return Explanation(shown, "graph_conv", tuple(steps), inner.error)


graph_conv.explain = _explain  # type: ignore[attr-defined]
