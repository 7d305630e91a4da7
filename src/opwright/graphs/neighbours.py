"""Reductions over neighbours, and products of neighbours' features."""

from __future__ import annotations

from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from opwright.graphs.graph import Graph
from opwright.kit.explain import Explanation
from opwright.kit.explain import explain as explain_op
from opwright.kit.spec.require import spell
from opwright.ops.spmm.op import sddmm as sddmm_op
from opwright.ops.spmm.op import spmm as spmm_op
from opwright.ops.spmm.pattern import PIECE, sums_in
from opwright.ops.spmm_max.op import spmm_max as spmm_max_op

Reduce = Literal["sum", "mean", "max", "min"]


def spmm(
    x: Tensor,
    graph: Graph,
    weight: Tensor | None = None,
    *,
    reduce: Reduce = "sum",
    bias: Tensor | None = None,
    activation: Literal["relu"] | None = None,
) -> Tensor:
    """out[i] = Σ weight[e] · x[j] + bias over the edges e from j to i of a graph; or their mean, maximum or minimum.

    Half and bfloat16 are added up in float32. Nothing of the size of edges times features is made, forward or backward,
    and results are the same each time. The mean divides by the number of edges. Without edges a node gets 0 (and the
    bias). Where several edges have the maximum, they share its gradient evenly, as `torch.amax` has it.

    Args:
        x: `[sources, features]`, or `[..., sources, features]`
        graph: an `ow.Graph`
        weight: `[edges]`, in the order of the graph's `edge_index`; by default the graph's own, if it has any. It may
            be float32 beside half and bfloat16
        reduce: `"sum"`, `"mean"`, `"max"` or `"min"`
        bias: `[features]`, optional, for sums and means
        activation: `"relu"`, or None; for sums and means

    Differentiable: x, weight, bias, any number of times.

    >>> import torch, opwright as ow
    >>> graph = ow.Graph(torch.tensor([[0, 1, 1], [2, 2, 0]]), 3)
    >>> ow.spmm(torch.tensor([[1.0], [2.0], [3.0]]), graph, torch.tensor([10.0, 1.0, 1.0])).flatten()
    tensor([ 2.,  0., 12.])
    >>> ow.spmm(torch.tensor([[1.0], [-2.0], [3.0]]), graph, reduce="max").flatten()
    tensor([-2.,  0.,  1.])
    """
    _refuse("spmm", x, graph)
    return gathered(x, graph, weight, reduce, bias, activation)


def gathered(
    x: Tensor, graph: Graph, weight: Tensor | None, reduce: str, bias: Tensor | None, activation: str | None
) -> Tensor:
    """What spmm computes, of features that are known to fit the graph."""
    op, args, kwargs = _spmm_call(x, graph, weight, reduce, bias, activation)
    if x.dim() == 2:
        return op(*args, **kwargs)  # type: ignore[no-any-return]
    out = op(*_flattened(*args), **kwargs)
    return out.reshape(graph.num_targets, *x.shape[:-2], x.shape[-1]).movedim(0, -2)  # type: ignore[no-any-return]


def _flattened(x: Tensor, rowptr: Tensor, col: Tensor, weight: Tensor | None, *bias: Tensor | None) -> tuple[Any, ...]:
    """The arguments of a call with leading dimensions. They are features as well: one walk for all of them."""
    lead, features = x.shape[:-2].numel(), x.shape[-1]
    for value in bias:
        if value is not None and value.shape != (features,):
            raise ValueError(f"spmm: bias must have shape ({features},), got {tuple(value.shape)}")
    flat = x.movedim(-2, 0).reshape(x.shape[-2], lead * features)
    return flat, rowptr, col, weight, *(None if value is None else value.repeat(lead) for value in bias)


def _spmm_call(
    x: Tensor, graph: Graph, weight: Tensor | None, reduce: str, bias: Tensor | None, activation: str | None
) -> Any:
    if activation not in (None, "relu"):
        raise ValueError(f"spmm: activation must be 'relu' or None, got {activation!r}")
    if reduce not in ("sum", "mean", "max", "min"):
        raise ValueError(f"spmm: reduce must be 'sum', 'mean', 'max' or 'min', got {reduce!r}")
    if x.layout != torch.strided:
        _refuse_sparse("spmm", "x", x)
    counts = weights_of("spmm", x, graph, weight)
    args: tuple[Any, ...] = (x, graph.rowptr, graph.col, counts)
    more = pattern_of(graph)
    more["reduce"] = reduce
    if reduce in ("sum", "mean"):
        more["relu"] = activation is not None
        return spmm_op, (*args, bias), more
    if bias is not None:
        raise ValueError(f"spmm: bias is for sums and means, got one with reduce={reduce!r}; add it to the result")
    if activation is not None:
        raise ValueError(f"spmm: activation is for sums and means, got one with reduce={reduce!r}; apply it after")
    return spmm_max_op, args, more


def sddmm(a: Tensor, b: Tensor, graph: Graph) -> Tensor:
    """out[e] = a[i] · b[j] for the edges e from j to i of a graph: a product of matrices where there are edges.

    Args:
        a: `[targets, features]`
        b: `[sources, features]`
        graph: an `ow.Graph`

    Returns: `[edges]`, in the order of the graph's `edge_index`

    >>> import torch, opwright as ow
    >>> graph = ow.Graph(torch.tensor([[0, 1], [1, 1]]), 2)
    >>> a = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> ow.sddmm(a, a, graph)
    tensor([11., 25.])
    """
    _refuse("sddmm", b, graph, "b")
    for name, features in (("a", a), ("b", b)):
        if isinstance(features, Tensor) and features.layout != torch.strided:
            _refuse_sparse("sddmm", name, features)
    return sddmm_op(a, b, graph.rowptr, graph.col, **pattern_of(graph))  # type: ignore[no-any-return]


def pattern_of(graph: Graph) -> dict[str, Any]:
    """What the operators take of a graph, by name."""
    return {
        "edge": graph.edge,
        "t_rowptr": graph.t_rowptr,
        "t_col": graph.t_col,
        "t_edge": graph.t_edge,
        "split": graph.split,
        "t_split": graph.t_split,
        "bins": graph.bins,
        "t_bins": graph.t_bins,
        "piece": PIECE,
    }


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on for a tensor. Of the meta device nobody may ask."""
    kind = x.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def weights_of(op: str, x: Tensor, graph: Graph, weight: Tensor | None, name: str = "weight") -> Tensor | None:
    """The weights of a call: those given, or the graph's own in a dtype that goes with x. Under autocast, where x may
    have any, so may the weights."""
    if weight is None:
        own = graph.weight
        return own if own is None or own.dtype == x.dtype else own.to(sums_in(x.dtype))
    if not isinstance(weight, Tensor) or weight.shape != (graph.num_edges,):
        got = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(f"{op}: {name} must have shape ({graph.num_edges},), one number an edge, got {got}")
    if weight.dtype != x.dtype and autocasts(x):
        return weight.to(sums_in(x.dtype))
    return weight


def _refuse(op: str, x: Tensor, graph: Graph, name: str = "x") -> None:
    if not isinstance(graph, Graph):
        raise TypeError(f"{op}: graph must be an ow.Graph, got {type(graph).__name__}")
    if not isinstance(x, Tensor):
        raise TypeError(f"{op}: {name} must be a Tensor, got {type(x).__name__}")
    shape = x.shape
    if len(shape) < 2 or shape[-2] != graph.num_sources:
        raise ValueError(
            f"{op}: {name} must have shape [..., {graph.num_sources}, features], a row for each source of the graph, "
            f"got {tuple(shape)}"
        )
    refuse_device(op, x, graph, name)


def _refuse_sparse(op: str, name: str, features: Tensor) -> NoReturn:
    raise TypeError(f"{op}: {name} must be a dense tensor, got {spell(features.layout)}")


def refuse_device(op: str, x: Tensor, graph: Graph, name: str = "x") -> None:
    """Raise where features and graph are on two devices."""
    if x.device != graph.device:
        raise ValueError(f"{op}: {name} is on {spell(x.device)} and the graph on {spell(graph.device)}")


def _explain_spmm(
    x: Tensor,
    graph: Graph,
    weight: Tensor | None = None,
    *,
    reduce: Reduce = "sum",
    bias: Tensor | None = None,
    activation: Literal["relu"] | None = None,
) -> Explanation:
    _refuse("spmm", x, graph)
    op, args, kwargs = _spmm_call(x, graph, weight, reduce, bias, activation)
    return explain_op(op, *(args if x.dim() == 2 else _flattened(*args)), **kwargs)


def _explain_sddmm(a: Tensor, b: Tensor, graph: Graph) -> Explanation:
    return explain_op(sddmm_op, a, b, graph.rowptr, graph.col, **pattern_of(graph))


# ow.explain and ow.check ask for these.
spmm.explain, spmm.op = _explain_spmm, spmm_op  # type: ignore[attr-defined]
sddmm.explain, sddmm.op = _explain_sddmm, sddmm_op  # type: ignore[attr-defined]
