"""Trains the same two-layer graph network in torch-geometric and here, on a made-up citation graph.

    python examples/citations.py [--papers 2700] [--updates 100] [--device cpu]

Papers of a few topics cite papers of their own topic more often than others, and have words that hint at it. A tenth
of them is labelled. Both models start from the same parameters and see the same data; loss, accuracy and time stand
side by side. Without torch-geometric, ours runs alone.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import opwright as ow


def citations(papers: int, topics: int, words: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features [papers, words], citations [2, edges] both ways, and the topic of each paper."""
    generator = torch.Generator().manual_seed(seed)
    topic = torch.randint(0, topics, (papers,), generator=generator)
    source = torch.randint(0, papers, (papers * 4,), generator=generator)
    target = torch.randint(0, papers, (papers * 4,), generator=generator)
    alike = topic[source] == topic[target]
    kept = alike | (torch.rand(len(source), generator=generator) < 0.1)
    ends = torch.stack((source[kept], target[kept]))
    hint = torch.randn(topics, words, generator=generator)
    x = 0.4 * hint[topic] + torch.randn(papers, words, generator=generator)
    return x, torch.cat((ends, ends.flip(0)), 1), topic


class Network(nn.Module):
    """Two graph convolutions."""

    def __init__(self, layer: Any, words: int, hidden: int, topics: int) -> None:
        super().__init__()
        self.first, self.second = layer(words, hidden), layer(hidden, topics)

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        out: Tensor = self.second(self.first(x, graph).relu(), graph)
        return out


def train(model: nn.Module, x: Tensor, graph: Any, topic: Tensor, updates: int) -> list[tuple[float, float, float]]:
    """Seconds, loss and accuracy on the papers without a label, after each update."""
    labelled = torch.arange(len(topic), device=x.device) % 10 == 0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    curve, spent = [], 0.0
    for update in range(updates):
        start = time.perf_counter()
        out = model(x, graph)
        loss = cross_entropy(out[labelled], topic[labelled])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        said = loss.item()
        spent += time.perf_counter() - start if update else 0.0  # the first may build a kernel
        right = (out.argmax(1) == topic)[~labelled].float().mean().item()
        curve.append((spent, said, right))
    return curve


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", type=int, default=2700)
    parser.add_argument("--words", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--topics", type=int, default=7)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    drawn = citations(options.papers, options.topics, options.words, options.seed)
    x, ends, topic = (t.to(options.device) for t in drawn)
    torch.manual_seed(options.seed)
    sizes = (options.words, options.hidden, options.topics)
    ours = Network(lambda i, o: ow.nn.GraphConv(i, o, normalize=False), *sizes).to(options.device)
    start = {name: value.clone() for name, value in ours.state_dict().items()}
    graph = ow.Graph(ends, options.papers).normalized()
    curves = {"opwright": train(ours, x, graph, topic, options.updates)}
    try:
        from torch_geometric.nn import GCNConv  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        print("torch-geometric is not installed: ours alone")
    else:
        theirs = Network(lambda i, o: GCNConv(i, o, cached=True), *sizes).to(options.device)
        theirs.load_state_dict(start)
        curves["torch-geometric"] = train(theirs, x, ends, topic, options.updates)
    table = Table(title=f"{options.papers} papers, {ends.shape[1]} citations, {options.device}")
    table.add_column("update", justify="right")
    for name in curves:
        table.add_column(f"{name}: loss", justify="right")
        table.add_column("accuracy", justify="right")
        table.add_column("ms", justify="right")
    for update in sorted({0, 1, options.updates - 1, *range(0, options.updates, max(1, options.updates // 8))}):
        if update < options.updates:
            figures = [f for c in curves.values() for f in c[update]]
            cells = [
                text
                for spent, loss, right in zip(*[iter(figures)] * 3, strict=True)
                for text in (f"{loss:.4f}", f"{right:.3f}", f"{spent * 1e3:.1f}")
            ]
            table.add_row(str(update), *cells)
    Console().print(table)
    return curves


if __name__ == "__main__":
    main()
