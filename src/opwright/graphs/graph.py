"""The graph: compressed rows, both ways, in plain tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from opwright.graphs import reading
from opwright.kit import private
from opwright.kit.spec.require import spell
from opwright.ops.spmm.pattern import PATTERN, bins_of, split_of

TENSORS = (*PATTERN, "weight", "origin")


class Graph:
    """A graph of edges from sources to targets, compressed by target and by source.

    Everything in it is a plain tensor, made once: `.to()`, pickle, `torch.save`, workers of a DataLoader,
    `torch.compile` and `torch.export` take a graph as they take tensors. Edges may repeat, nodes may stand alone, and
    there may be as many sources and targets as there are: a bipartite graph has two numbers. Edge weights, and what is
    computed of edges, are always in the order of `edge_index`.

    Args:
        edge_index: `[2, edges]`, integers: the source of each edge, then its target, as torch-geometric has it
        num_nodes: how many nodes there are, or `(sources, targets)`; by default as many as `edge_index` names
        weight: `[edges]`, what each edge counts, where `ow.spmm` and `ow.graph_conv` are given nothing else

    >>> import torch, opwright as ow
    >>> graph = ow.Graph(torch.tensor([[0, 1, 1], [2, 2, 0]]), 3)
    >>> graph
    Graph(nodes=3, edges=3)
    >>> ow.spmm(torch.tensor([[1.0], [2.0], [3.0]]), graph).flatten()
    tensor([2., 0., 3.])
    """

    rowptr: Tensor
    """`[targets + 1]`: where in `col` the edges of each target begin."""
    col: Tensor
    """`[edges]`, int32: the sources, by target."""
    edge: Tensor | None
    """`[edges]`: which edge of `edge_index` each is; None where they came in this order."""
    t_rowptr: Tensor
    """The transposed form, by source: `t_rowptr`, `t_col` (targets), `t_edge`."""
    t_col: Tensor
    t_edge: Tensor
    split: Tensor
    """`[pieces, 2]`: the target and the first edge of each piece of the long rows; `t_split` of the long columns."""
    t_split: Tensor
    bins: Tensor
    """The first target of each bin of targets that a GPU walks one after another; `t_bins` of sources."""
    t_bins: Tensor
    weight: Tensor | None
    """`[edges]`, in the order of `edge_index`."""
    origin: Tensor | None
    """Of a graph made from another one: which edge of that each is, -1 for one that was added."""
    num_sources: int
    num_targets: int
    _looped: Graph | None = None
    """Its edges with self loops, once somebody has asked for them."""
    _origin_edges: int | None = None
    """How many edges the graph has that `origin` speaks of; None where nobody knows, after a trip as a pytree."""

    def __init__(
        self, edge_index: Tensor, num_nodes: int | tuple[int, int] | None = None, *, weight: Tensor | None = None
    ) -> None:
        source, target, sizes = reading.edge_index(edge_index, num_nodes)
        reading.refuse_weight(weight, source)
        self._compress(source, target, *sizes)
        self.weight, self.origin = weight, None

    @classmethod
    def from_csr(
        cls, rowptr: Tensor, col: Tensor, num_sources: int | None = None, *, weight: Tensor | None = None
    ) -> Graph:
        """The graph of compressed rows: row i has the edges from `col[rowptr[i]:rowptr[i + 1]]` to i.

        >>> import torch, opwright as ow
        >>> ow.Graph.from_csr(torch.tensor([0, 2, 2]), torch.tensor([0, 1]))
        Graph(nodes=2, edges=2)
        """
        source, target, sizes = reading.csr(rowptr, col, num_sources)
        reading.refuse_weight(weight, source)
        made = cls.__new__(cls)
        made._compress(source, target, *sizes)
        made.weight, made.origin = weight, None
        return made

    @classmethod
    def from_sparse(cls, matrix: Any) -> Graph:
        """The graph of a sparse matrix `[targets, sources]`, with its values as weights: torch's COO, CSR and CSC
        tensors, and scipy's matrices. `ow.spmm(x, graph)` is then `matrix @ x`.

        >>> import torch, opwright as ow
        >>> graph = ow.Graph.from_sparse(torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse())
        >>> ow.spmm(torch.tensor([[1.0], [3.0]]), graph).flatten()
        tensor([6., 0.])
        """
        source, target, sizes, weight = reading.sparse(matrix)
        made = cls.__new__(cls)
        made._compress(source, target, *sizes)
        made.weight, made.origin = weight, None
        return made

    def _compress(self, source: Tensor, target: Tensor, sources: int, targets: int) -> None:
        """Sort the edges both ways. Stable: edges of a row keep their order, and so do sums."""
        with ordinary_tensors():
            self._sort(source, target, sources, targets)

    def _sort(self, source: Tensor, target: Tensor, sources: int, targets: int) -> None:
        count = source.shape[0]
        offsets = torch.int32 if count < 2**31 - 4096 else torch.int64
        ordered = count == 0 or bool((target[1:] >= target[:-1]).all())
        order = None if ordered else target.argsort(stable=True)
        back = source.argsort(stable=True)
        self.num_sources, self.num_targets = sources, targets
        self.rowptr = _starts(target, targets, offsets)
        self.col = (source if order is None else source[order]).int()
        self.edge = None if order is None else order.to(offsets)
        self.t_rowptr = _starts(source, sources, offsets)
        self.t_col, self.t_edge = target[back].int(), back.to(offsets)
        self.split, self.t_split = split_of(self.rowptr), split_of(self.t_rowptr)
        self.bins, self.t_bins = bins_of(self.rowptr, count), bins_of(self.t_rowptr, count)

    # --- what it is ------------------------------------------------------------------------------------------------

    @property
    def num_nodes(self) -> int:
        """How many nodes there are; of a bipartite graph, how many targets."""
        return self.num_targets

    @property
    def num_edges(self) -> int:
        """How many edges there are."""
        return self.col.shape[0]

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.col.device

    @property
    def nbytes(self) -> int:
        """How much memory its tensors take."""
        return sum(t.nbytes for t in self._tensors() if t is not None)

    @property
    def edge_index(self) -> Tensor:
        """`[2, edges]`, int64: source and target of each edge, as they were given."""
        by_edge = self.t_edge.long()
        source = torch.repeat_interleave(self.t_rowptr.diff().long(), output_size=self.num_edges)
        ends = torch.stack((source, self.t_col.long()))
        return torch.empty_like(ends).index_copy_(1, by_edge, ends)

    def degrees(self) -> Tensor:
        """How many edges each target has."""
        return self.rowptr.diff()

    def __repr__(self) -> str:
        square = self.num_sources == self.num_targets
        nodes = f"nodes={self.num_targets}" if square else f"sources={self.num_sources}, targets={self.num_targets}"
        more = "" if self.weight is None else ", weighted"
        return f"Graph({nodes}, edges={self.num_edges}{more})"

    # --- others of it ----------------------------------------------------------------------------------------------

    def _with(self, **changed: Any) -> Graph:
        made = type(self).__new__(type(self))
        if type(self) is not Graph:
            made.__dict__.update(self.__dict__)
        # One by one: before torch 2.12 compilers do not follow what is done to a __dict__.
        for name in (*TENSORS, "num_sources", "num_targets"):
            setattr(made, name, changed[name] if name in changed else getattr(self, name))
        made._looped, made._origin_edges = changed.get("_looped"), self._origin_edges
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_looped": None}

    @property
    def T(self) -> Graph:
        """The graph with its edges turned round. Nothing is computed."""
        count = self.num_edges
        edge = self.edge if self.edge is not None else torch.arange(count, dtype=self.t_edge.dtype, device=self.device)
        return self._with(
            rowptr=self.t_rowptr, col=self.t_col, edge=self.t_edge, split=self.t_split, bins=self.t_bins,
            t_rowptr=self.rowptr, t_col=self.col, t_edge=edge, t_split=self.split, t_bins=self.bins,
            num_sources=self.num_targets, num_targets=self.num_sources,
        )  # fmt: skip

    def with_weight(self, weight: Tensor | None) -> Graph:
        """The same edges with other weights."""
        reading.refuse_weight(weight, self.col)
        return self._with(weight=weight, _looped=self._looped)

    def with_self_loops(self, fill: float = 1.0) -> Graph:
        """The graph in which every node has exactly one edge to itself, after all other edges. One that was there keeps
        its weight (of several, the last), another has `fill`; without weights all count 1, unless `fill` is another.

        >>> import torch, opwright as ow
        >>> ow.Graph(torch.tensor([[0, 0], [0, 1]]), 2).with_self_loops().edge_index
        tensor([[0, 0, 1],
                [1, 0, 1]])
        """
        self._refuse_bipartite("with_self_loops")
        if self._looped is None:
            self._looped = self._add_loops()
        if self.weight is None and fill == 1:
            return self._looped
        return self._looped.with_weight(self._looped.carried(self.weight, fill))

    def _add_loops(self, *, beside: bool = False) -> Graph:
        """Its edges with self loops; `beside` those that are there, rather than in their place."""
        with ordinary_tensors():
            return self._with_loops(beside)

    def _with_loops(self, beside: bool) -> Graph:
        ends, nodes = self.edge_index, self.num_nodes
        looped = torch.zeros_like(ends[0], dtype=torch.bool) if beside else ends[0] == ends[1]
        others = (~looped).nonzero().flatten()
        loops = looped.nonzero().flatten()
        was = torch.full((nodes,), -1, dtype=torch.int64, device=self.device)
        if loops.numel():
            was = was.scatter_reduce(0, ends[0][loops], loops, "amax")  # the last of several
        each = torch.arange(nodes, device=self.device)
        made = Graph(torch.cat((ends[:, others], torch.stack((each, each))), 1), nodes)
        made.origin, made._origin_edges = torch.cat((others, was)), self.num_edges
        return made

    def carried(self, weight: Tensor | None, fill: float = 1.0) -> Tensor:
        """Weights of the edges of the graph that this one was made from, as those of this one's edges: `fill` for edges
        that were added. Gradients pass. Without weights every edge of that graph counts 1."""
        if self.origin is None:
            if weight is None:
                raise ValueError("carried: this graph was made from no other one, so that it has no weights to carry")
            reading.refuse_weight(weight, self.col)
            return weight
        new = self.origin < 0
        if weight is None:
            return torch.where(new, fill, torch.ones(self.num_edges, device=self.device))
        edges = self._origin_edges
        if not isinstance(weight, Tensor) or weight.dim() != 1 or edges not in (None, weight.shape[0]):
            got = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
            raise ValueError(
                f"carried: weight must have shape ({'edges' if edges is None else edges},), one number an edge of the "
                f"graph that this one was made from, got {got}"
            )
        if weight.shape[0] == 0:
            return weight.new_full((self.num_edges,), fill) + weight.sum()  # of nothing: for the gradient
        return torch.where(new, fill, weight.index_select(0, self.origin.clamp(min=0)))

    def normalized(
        self,
        kind: Literal["mean", "symmetric"] = "symmetric",
        *,
        self_loops: bool = True,
        improved: bool = False,
    ) -> Graph:
        """The graph with normalised weights: `"symmetric"`, w / √(dᵢ dⱼ), where d is the sum of the weights that come
        in, with self loops first (which count 2 if `improved`), as graph convolutions have it; or `"mean"`, w / dᵢ,
        without.

        >>> import torch, opwright as ow
        >>> ow.Graph(torch.tensor([[0], [1]]), 2).normalized().weight
        tensor([0.7071, 1.0000, 0.5000])
        """
        from opwright.graphs import normalizing

        return normalizing.normalized(self, kind, self_loops, improved)

    @staticmethod
    def batch(graphs: Sequence[Graph]) -> Graph:
        """Many graphs as one without edges between them: the nodes, and the edges, of one after those of another.

        >>> import torch, opwright as ow
        >>> pair = ow.Graph(torch.tensor([[0], [1]]), 2)
        >>> ow.Graph.batch([pair, pair]).edge_index
        tensor([[0, 2],
                [1, 3]])
        """
        return _batch(graphs)

    # --- where it is -----------------------------------------------------------------------------------------------

    def _tensors(self) -> list[Tensor | None]:
        return [getattr(self, name) for name in TENSORS]

    def _named(self) -> Iterable[tuple[str, Tensor | None]]:
        return zip(TENSORS, self._tensors(), strict=True)

    def _mapped(self, function: Any) -> Graph:
        """Its tensors through a function that moves or casts. Indices keep their dtype."""

        def mapped(tensor: Tensor) -> Tensor:
            new: Tensor = function(tensor)
            return new if tensor.is_floating_point() or new.dtype == tensor.dtype else tensor.to(new.device)

        return self._with(**{name: None if t is None else mapped(t) for name, t in self._named()})

    def to(self, device: torch.device | torch.dtype | str | int, *, non_blocking: bool = False) -> Graph:
        """The graph on another device, or with its weight in another dtype; itself where nothing changes."""
        if isinstance(device, torch.dtype) and not device.is_floating_point:
            raise TypeError(f"to: weights need a floating-point dtype, and indices keep theirs; got {spell(device)}")
        moved = self._mapped(lambda t: t.to(device, non_blocking=non_blocking))
        return self if moved.col is self.col and moved.weight is self.weight else moved

    def cuda(self, device: int | None = None) -> Graph:
        """The graph on a GPU."""
        return self.to("cuda" if device is None else f"cuda:{device}")

    def cpu(self) -> Graph:
        """The graph in the host's memory."""
        return self.to("cpu")

    def pin_memory(self) -> Graph:
        """The graph in memory that copies to a GPU need not wait for; a DataLoader asks for it."""
        return self._mapped(lambda t: t.pin_memory())

    def share_memory_(self) -> Graph:
        """Move its tensors to memory that processes share."""
        self._mapped(lambda t: t.share_memory_())
        return self

    def _refuse_bipartite(self, what: str) -> None:
        if self.num_sources != self.num_targets:
            raise ValueError(
                f"{what}: sources and targets must be the same nodes, "
                f"got {self.num_sources} sources and {self.num_targets} targets"
            )


def ordinary_tensors() -> AbstractContextManager[Any]:
    """Where a graph makes what it keeps: tensors of inference mode would be no use to the training that comes after."""
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():  # of which a compiler cannot be asked
        return nullcontext()
    return torch.inference_mode(False)


def _starts(index: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    counts = torch.bincount(index, minlength=size)
    return torch.cat((counts.new_zeros(1), counts.cumsum(0))).to(dtype)


def _batch(given: Any) -> Graph:
    if isinstance(given, Graph) or not isinstance(given, Iterable):
        raise TypeError(f"batch: graphs must be several ow.Graph, such as a list, got {type(given).__name__}")
    graphs = list(given)
    for n, g in enumerate(graphs):
        if not isinstance(g, Graph):
            raise TypeError(f"batch: graphs[{n}] must be an ow.Graph, got {type(g).__name__}")
    if not graphs:
        raise ValueError("batch: there must be a graph at least, got none")
    if len({g.weight is None for g in graphs}) > 1:
        raise ValueError("batch: either all graphs must have weights or none")
    ends, sources, targets = [], 0, 0
    for g in graphs:
        ends.append(g.edge_index + torch.tensor([[sources], [targets]], device=g.device))
        sources, targets = sources + g.num_sources, targets + g.num_targets
    weight = None if graphs[0].weight is None else torch.cat([g.weight for g in graphs if g.weight is not None])
    return Graph(torch.cat(ends, 1), (sources, targets), weight=weight)


def _flatten(graph: Graph) -> tuple[list[Tensor | None], list[int]]:
    return graph._tensors(), [graph.num_sources, graph.num_targets]


def _unflatten(tensors: Iterable[Any], sizes: Any) -> Graph:
    made = Graph.__new__(Graph)
    for name, tensor in zip(TENSORS, tensors, strict=True):
        setattr(made, name, tensor)
    made.num_sources, made.num_targets = sizes
    return made


private.register_pytree(Graph, _flatten, _unflatten, TENSORS)
torch.serialization.add_safe_globals([Graph])  # torch.load takes it as it takes tensors
