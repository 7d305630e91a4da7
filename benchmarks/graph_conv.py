"""Graph convolutions against torch.sparse and torch-geometric: one run, in turns.

    python benchmarks/graph_conv.py [--device cuda] [--json FILE] [--only PART …] [--seconds S]

Parts: spmm, conv, half, edges, power, small, memory (on a GPU), cpu. Every variant is compared with float64 before it
is timed. Times are medians; on a GPU of the device's own time, the cache flushed before each call, except for `small`,
which is the time of the host and device together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import opwright as ow
from opwright.kit.bench import machine, timers
from opwright.kit.bench.memory import peak_bytes

Calls = dict[str, Callable[[], Any]]


def uniform(nodes: int, edges: int, device: str) -> Tensor:
    """Edges between nodes drawn alike."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, nodes, (2, edges), generator=generator).to(device)


def power_law(nodes: int, edges: int, device: str, exponent: float = 2.1) -> Tensor:
    """Edges whose ends are drawn so that degrees fall off as degree^-exponent; the busiest node has some percent."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.arange(1, nodes + 1, dtype=torch.float64).pow(-1 / (exponent - 1))
    ends = [torch.multinomial(weight, edges, replacement=True, generator=generator) for _ in range(2)]
    shuffled = [torch.randperm(nodes, generator=generator)[end] for end in ends]
    return torch.stack(shuffled).to(device)


class Case:
    """A graph with features and weights in every form that the variants take."""

    def __init__(self, ends: Tensor, nodes: int, inputs: int, outputs: int, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        order = ends[1].argsort(stable=True)  # nobody is to gain or lose by the order of the edges
        self.ends, self.nodes = ends[:, order].contiguous(), nodes
        device = ends.device
        self.graph = ow.Graph(self.ends, nodes)
        self.values = torch.rand(ends.shape[1], device=device, dtype=torch.float64).to(dtype)
        self.x = torch.randn(nodes, inputs, device=device, dtype=torch.float64).to(dtype)
        self.weight = (torch.randn(inputs, outputs, device=device, dtype=torch.float64) / inputs**0.5).to(dtype)
        self.bias = torch.randn(outputs, device=device, dtype=torch.float64).to(dtype)
        self.grad = torch.randn(nodes, outputs, device=device, dtype=torch.float64).to(dtype)

    def csr(self) -> Tensor:
        return torch.sparse_csr_tensor(self.graph.rowptr, self.graph.col, self.values, (self.nodes, self.nodes))

    def coo(self) -> Tensor:
        return torch.sparse_coo_tensor(self.ends.flip(0), self.values, (self.nodes, self.nodes), is_coalesced=False)

    def exact_sum(self, x: Tensor, values: Tensor | None = None) -> Tensor:
        """Σ value · x over neighbours in float64, a few features at a time."""
        values = self.values if values is None else values
        parts = []
        for part in x.double().split(16, 1):
            near = part.index_select(0, self.ends[0]) * values.double()[:, None]
            parts.append(
                torch.zeros(self.nodes, part.shape[1], device=x.device, dtype=torch.float64).index_add_(
                    0, self.ends[1], near
                )
            )
        return torch.cat(parts, 1)

    def inputs(self, *names: str) -> dict[str, Tensor]:
        return {name: getattr(self, name).detach().clone().requires_grad_() for name in names}


def geometric() -> Any:
    """torch-geometric's graph convolution, or None where it is not installed."""
    try:
        from torch_geometric.nn import GCNConv  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    return GCNConv


class Bench:
    def __init__(self, device: str, seconds: float, file: Path | None) -> None:
        self.device, self.seconds, self.file = device, seconds, file
        self.rows: list[dict[str, Any]] = []
        self.clock: Any = timers.clock_for(torch.device(device))

    def keep(self, figure: str, unit: str, times: dict[str, float], limit: str = "", **more: Any) -> None:
        """A row of results, on disk at once: what fails later loses nothing."""
        others = {n: t for n, t in times.items() if n not in ("opwright", "opwright, no weights")}
        best = min(others, key=lambda n: others[n]) if others else None
        ratio = times["opwright"] / others[best] if best else None
        self.rows.append(
            {
                "figure": figure,
                "unit": unit,
                "device": self.device,
                "values": times,
                "ratio": ratio,
                "limit": limit,
                **more,
            }
        )
        shown = ", ".join(f"{n} {t:.4g}" for n, t in times.items())
        print(
            f"{figure} [{unit}]: {shown}"
            + (f"; {ratio:.2f} of {best}" if best else "")
            + (f"; wanted {limit}" if limit else ""),
            flush=True,
        )
        if self.file is not None:
            stored = {
                "machine": machine.machine(),
                "versions": machine.versions(),
                "date": machine.today(),
                "rows": self.rows,
            }
            self.file.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")

    def times(self, calls: Calls) -> dict[str, float]:
        """Milliseconds a call."""
        found = timers.in_turns([*calls.values()], self.clock, seconds=self.seconds * len(calls), most=200)
        return {name: statistics.median(r.device) * 1e3 for name, r in zip(calls, found, strict=True)}

    def wall(self, calls: Calls, repeats: int = 20) -> dict[str, float]:
        """Milliseconds a call, host and device."""
        sync: Callable[[], None] = torch.cuda.synchronize if self.device == "cuda" else lambda: None
        for call in calls.values():
            for _ in range(5):
                call()
        taken: dict[str, list[float]] = {name: [] for name in calls}
        end = time.perf_counter() + self.seconds * len(calls)
        while time.perf_counter() < end or len(taken["opwright"]) < 5:
            for name, call in calls.items():
                sync()
                start = time.perf_counter()
                for _ in range(repeats):
                    call()
                sync()
                taken[name].append((time.perf_counter() - start) / repeats * 1e3)
        return {name: statistics.median(t) for name, t in taken.items()}

    def verify(self, what: str, calls: Calls, exact: list[Tensor], most: float = 1e-5) -> Calls:
        """The calls that are right; who is wrong is said, and not timed."""
        right = {}
        for name, call in calls.items():
            got = call()
            got = list(got) if isinstance(got, (list, tuple)) else [got]
            errors = [((g.double() - e).norm() / e.norm()).item() for g, e in zip(got, exact, strict=False)]
            if max(errors) < most:
                right[name] = call
            else:
                print(f"{what}: {name} is WRONG, off by {max(errors):.2g}", flush=True)
        return right

    # --- the parts ---------------------------------------------------------------------------------------------

    def spmm_calls(self, case: Case) -> Calls:
        csr = case.csr()
        return {
            "opwright": lambda: ow.spmm(case.x, case.graph, case.values),
            "torch CSR": lambda: csr @ case.x,
        }

    def spmm(self) -> None:
        case = Case(uniform(200_000, 4_000_000, self.device), 200_000, 128, 128)
        calls = self.verify("spmm", self.spmm_calls(case), [case.exact_sum(case.x)])
        calls["opwright, no weights"] = lambda: ow.spmm(case.x, case.graph)
        self.keep("spmm forward, 200k nodes, 4M edges, 128 features, float32", "ms", self.times(calls), "0.38 ms")

    def conv_calls(self, case: Case, *, backward: bool, learn: tuple[str, ...] = ("x", "weight")) -> Calls:
        leaves = case.inputs(*learn) if backward else {}
        x, weight, bias = leaves.get("x", case.x), leaves.get("weight", case.weight), leaves.get("bias", case.bias)
        values = leaves.get("values", case.values)
        csr = case.csr()

        def run(function: Callable[[], Tensor], leaves: Any) -> Any:
            return torch.autograd.grad(function(), [*leaves.values()], case.grad) if backward else function()

        functions: dict[str, Callable[[], Tensor]] = {
            "opwright": lambda: ow.graph_conv(x, weight, bias, case.graph, values),
        }
        calls: Calls = {}
        if "values" not in leaves:
            functions["torch CSR"] = lambda: csr @ (x @ weight) + bias
        for name, function in functions.items():
            calls[name] = lambda function=function: run(function, leaves)  # type: ignore[misc]
        conv = geometric()
        if conv is not None:
            layer = conv(case.x.shape[1], case.weight.shape[1], normalize=False, add_self_loops=False)
            layer = layer.to(self.device, case.x.dtype)
            with torch.no_grad():
                layer.lin.weight.copy_(case.weight.t())
                layer.bias.copy_(case.bias)
            own = {n: {"weight": layer.lin.weight, "bias": layer.bias}.get(n, t) for n, t in leaves.items()}
            calls["PyG"] = lambda: run(lambda: layer(x, case.ends, values), own)
        return calls

    def conv_exact(self, case: Case) -> list[Tensor]:
        """The gradients of x and weight in float64."""
        back = torch.zeros(case.nodes, case.grad.shape[1], device=case.x.device, dtype=torch.float64)
        for at in range(0, case.grad.shape[1], 16):
            near = case.grad.double()[:, at : at + 16].index_select(0, case.ends[1]) * case.values.double()[:, None]
            back[:, at : at + 16].index_add_(0, case.ends[0], near)
        return [back @ case.weight.double().t(), case.x.double().t() @ back]

    def conv(self) -> None:
        case = Case(uniform(200_000, 4_000_000, self.device), 200_000, 128, 128)
        exact = case.exact_sum(case.x.double() @ case.weight.double()) + case.bias.double()
        calls = self.verify("graph_conv", self.conv_calls(case, backward=False), [exact])
        calls["the product alone"] = lambda: case.x @ case.weight
        times = self.times(calls)
        alone = times.pop("the product alone")
        self.keep("graph_conv 128→128 forward, 200k nodes, 4M edges", "ms", times, "0.60 ms", product_alone=alone)
        calls = self.conv_calls(case, backward=True)
        calls = self.verify("graph_conv f+b", {n: c for n, c in calls.items() if n != "PyG"}, self.conv_exact(case)) | {
            n: c for n, c in calls.items() if n == "PyG"
        }
        self.keep("graph_conv 128→128 forward + backward, weights and features", "ms", self.times(calls), "1.4 ms")

    def half(self) -> None:
        ends = uniform(200_000, 4_000_000, self.device)
        cases = {d: Case(ends, 200_000, 128, 128, d) for d in (torch.float32, torch.bfloat16)}
        narrow = cases[torch.bfloat16]
        exact = narrow.exact_sum(narrow.x)
        self.verify("spmm bf16", {"opwright": lambda: ow.spmm(narrow.x, narrow.graph, narrow.values)}, [exact], 5e-3)
        self.verify(
            "f+b bf16", {"opwright": self.conv_calls(narrow, backward=True)["opwright"]}, self.conv_exact(narrow), 2e-2
        )
        calls = {
            "opwright": lambda: ow.spmm(narrow.x, narrow.graph, narrow.values),
            "opwright, float32": self.spmm_calls(cases[torch.float32])["opwright"],
        }
        self.keep("spmm forward, bf16 against float32", "ms", self.times(calls), "0.58 ×")
        calls = {
            "opwright": self.conv_calls(narrow, backward=True)["opwright"],
            "opwright, float32": self.conv_calls(cases[torch.float32], backward=True)["opwright"],
        }
        self.keep("graph_conv forward + backward, bf16 against float32", "ms", self.times(calls), "0.5 ×")

    def edges(self) -> None:
        case = Case(uniform(200_000, 4_000_000, self.device), 200_000, 128, 128)
        learning = self.conv_calls(case, backward=True, learn=("x", "weight", "values"))
        calls = {
            "opwright": learning["opwright"],
            "opwright, fixed": self.conv_calls(case, backward=True)["opwright"],
        }
        exact_dots = torch.cat(
            [
                (case.grad.double()[ends[1]] * (case.x.double() @ case.weight.double())[ends[0]]).sum(1)
                for ends in case.ends.split(500_000, 1)
            ]
        )
        self.verify("edges", {"opwright": calls["opwright"]}, [*self.conv_exact(case), exact_dots])
        times = self.times(calls)
        added = times["opwright"] - times["opwright, fixed"]
        self.keep("gradients of the edge weights besides, f+b", "ms", times, "+ 0.25 ms", added=added)

    def power(self) -> None:
        case = Case(power_law(200_000, 4_000_000, self.device), 200_000, 128, 128)
        calls = self.verify("power law", self.spmm_calls(case), [case.exact_sum(case.x)])
        degrees = case.graph.degrees()
        self.keep(
            "spmm forward, power-law graph of 200k nodes, 4M edges", "ms", self.times(calls), "0.75 × torch CSR",
            longest_row=int(degrees.max()),
        )  # fmt: skip

    def small(self) -> None:
        case = Case(uniform(10_000, 100_000, self.device), 10_000, 64, 64)
        self.keep(
            "graph_conv 64→64 f+b, 10k nodes, 100k edges, host time included", "ms",
            self.wall(self.conv_calls(case, backward=True)), "0.5 × the better",
        )  # fmt: skip

    def memory(self) -> None:
        case = Case(uniform(500_000, 20_000_000, self.device), 500_000, 64, 64)
        calls = self.conv_calls(case, backward=True)
        calls.pop("PyG", None)
        for call in calls.values():
            call()
        peaks = {name: peak_bytes(call, torch.device(self.device)) / 2**20 for name, call in calls.items()}
        self.keep(
            "peak beyond inputs and graph, f+b, 500k nodes, 20M edges, 64→64", "MiB", peaks, "0.7 ×",
            graph_MiB=case.graph.nbytes / 2**20,
        )  # fmt: skip

    def cpu(self) -> None:
        case = Case(uniform(20_000, 400_000, "cpu"), 20_000, 64, 64)
        calls = self.conv_calls(case, backward=True)
        coo = case.coo()
        leaves = case.inputs("x", "weight")
        calls["torch COO"] = lambda: torch.autograd.grad(
            torch.sparse.mm(coo, leaves["x"] @ leaves["weight"]) + case.bias, [*leaves.values()], case.grad
        )
        calls = self.verify("cpu", {n: c for n, c in calls.items() if n != "PyG"}, self.conv_exact(case)) | {
            n: c for n, c in calls.items() if n == "PyG"
        }
        self.keep("graph_conv 64→64 f+b, 20k nodes, 400k edges, CPU", "ms", self.wall(calls, 1), "0.5 × the better")


PARTS = {"cuda": ("spmm", "conv", "half", "edges", "power", "small", "memory"), "cpu": ("cpu",)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each variant of a row")
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    bench = Bench(given.device, given.seconds, given.json)
    for part in given.only or PARTS[given.device]:
        getattr(bench, part)()
        if given.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
