"""The graph convolution as a layer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from opwright.graphs import Graph, graph_conv
from opwright.graphs.graph import ordinary_tensors
from opwright.graphs.neighbours import weights_of
from opwright.graphs.normalizing import symmetric


class GraphConv(nn.Module):
    """Â X Wᵀ + b, where Â is the graph with self loops, normalised by degrees: in place of torch-geometric's GCNConv,
    with its arguments and the names of its parameters, so that its state_dict loads.

    `forward(x, edge_index, edge_weight)` takes for `edge_index` an `ow.Graph` as well, which spares sorting the edges
    at each call, or a sparse matrix. Gradients of edge weights pass through the normalisation. A graph that is
    normalised already (`graph.normalized()`) goes with `normalize=False`, and is no break in a compiled graph.

    Args:
        improved: a self loop that is added counts 2 rather than 1, where there are edge weights, as in GCNConv
        cached: keep the normalised graph of the first call, for all calls
        add_self_loops: by default as `normalize`
        normalize: without, the edges count as they are

    >>> import torch, opwright as ow
    >>> conv = ow.nn.GraphConv(16, 4)
    >>> graph = ow.Graph(torch.tensor([[0, 1, 2], [1, 2, 0]]), 3)
    >>> conv, conv(torch.ones(3, 16), graph).shape
    (GraphConv(16, 4), torch.Size([3, 4]))
    """

    lin: nn.Linear

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size, least in (("in_channels", in_channels, -1), ("out_channels", out_channels, 1)):
            if isinstance(size, bool) or not isinstance(size, int) or size < least or size == 0:
                also = ", or -1 to take it from the first call" if least == -1 else ""
                raise ValueError(f"GraphConv: {name} must be a positive integer{also}, got {size!r}")
        if add_self_loops and not normalize:
            raise ValueError(
                "GraphConv: self loops are added with the normalisation; add_self_loops needs normalize=True"
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached, self.normalize = improved, cached, normalize
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops
        options: Any = {"bias": False, "device": device, "dtype": dtype}
        if in_channels == -1:
            self.lin = nn.LazyLinear(out_channels, **options)
            self.register_load_state_dict_post_hook(_loaded)  # type: ignore[no-untyped-call]
        else:
            self.lin = nn.Linear(in_channels, out_channels, **options)
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self._cached_graph: Graph | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform between ±√(6 / (in + out)), as Glorot has it, and no bias."""
        self._cached_graph = None
        if not isinstance(self.lin.weight, nn.UninitializedParameter):
            self._reset_weight()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _reset_weight(self) -> None:
        bound = math.sqrt(6 / (self.in_channels + self.out_channels))
        nn.init.uniform_(self.lin.weight, -bound, bound)

    def _settle(self, features: Tensor) -> None:
        """Let the first features, or as many of a loaded weight, say how many there are."""
        self.lin(features[..., :0, :])
        self.in_channels = self.lin.in_features = features.shape[-1]

    def forward(self, x: Tensor, edge_index: Tensor | Graph, edge_weight: Tensor | None = None) -> Tensor:
        if not isinstance(x, Tensor) or x.dim() < 2:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"GraphConv: x must have shape [..., nodes, in], one row a node, got {got}")
        if isinstance(self.lin.weight, nn.UninitializedParameter):
            self._settle(x)
            self._reset_weight()  # and no bias, which may have been set by now
        graph, weight = self._normalized(x, edge_index, edge_weight)
        return graph_conv(x, self.lin.weight.t(), self.bias, graph, weight)

    def _normalized(self, x: Tensor, edges: Any, weight: Tensor | None) -> tuple[Graph, Tensor | None]:
        if self.cached and self.normalize:
            _refuse_learning(edges, weight)
            if self._cached_graph is not None:
                return self._cached_graph, None
        graph = self._graph(x, edges)
        if not self.normalize:
            return graph, weight
        graph._refuse_bipartite("GraphConv")
        weight = weights_of("GraphConv", x, graph, weight, "edge_weight")
        if self.add_self_loops:
            # As GCNConv has it, to a matrix loops are added; of edges, a loop that is there stays alone.
            looped = graph._add_loops(beside=True) if _is_matrix(edges) else graph.with_self_loops()
            # Without weights GCNConv lets every edge count 1, and those that it adds too.
            weight = None if weight is None else looped.carried(weight, 2.0 if self.improved else 1.0)
            graph = looped
        weight = symmetric(graph, weight, x.dtype)
        if self.cached:
            with ordinary_tensors():
                self._cached_graph = graph.with_weight(weight.detach().clone())
        return graph, weight

    def _graph(self, x: Tensor, edges: Any) -> Graph:
        if isinstance(edges, Graph):
            return edges
        if not isinstance(edges, Tensor):
            raise TypeError(f"GraphConv: edge_index must be a Tensor or an ow.Graph, got {type(edges).__name__}")
        return Graph.from_sparse(edges) if _is_matrix(edges) else Graph(edges, x.shape[-2])

    def _apply(self, fn: Any, recurse: bool = True) -> GraphConv:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._cached_graph is not None:
            self._cached_graph = self._cached_graph._mapped(fn)
        return self

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}"
        for name, usual in (("improved", False), ("cached", False), ("normalize", True)):
            if getattr(self, name) != usual:
                text += f", {name}={getattr(self, name)}"
        if self.add_self_loops != self.normalize:
            text += f", add_self_loops={self.add_self_loops}"
        return text + ("" if self.bias is not None else ", bias=False")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


def _is_matrix(edges: Any) -> bool:
    return isinstance(edges, Tensor) and edges.layout != torch.strided


def _refuse_learning(edges: Any, weight: Tensor | None) -> None:
    """Raise where the weights of a call learn: those given, the graph's own or a sparse matrix's."""
    own = edges.weight if isinstance(edges, Graph) else edges
    for name, value in (("edge_weight", weight), ("the graph's own weight", own if weight is None else None)):
        if isinstance(value, Tensor) and value.requires_grad:
            raise ValueError(
                f"GraphConv: {name} requires a gradient, which a normalisation that is kept would not follow; "
                "it needs cached=False"
            )


def _loaded(layer: GraphConv, _: Any) -> None:
    """A state_dict has brought the weight of a lazy layer, and with it the number of features."""
    weight = layer.lin.weight
    if layer.in_channels == -1 and not isinstance(weight, nn.UninitializedParameter):
        layer._settle(weight)
