"""LLTM against plain PyTorch and nn.LSTM: forward and backward, measured in turns in one run.

    python benchmarks/lltm.py [--device cuda] [--compile] [--json FILE] [--only cell|sequence|shapes|memory|numerics]

Every variant is compared with the plain function in float64 before it is timed. A row gives, for each variant, the
quarter of its times that is least disturbed (p25), and how many times faster opwright is by the median of the ratios
within rounds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import elu, linear

import opwright as ow

Calls = dict[str, Callable[[], Any]]
PARTS = ("cell", "sequence", "shapes", "memory", "numerics")
# Steps, batch and size that nobody tuned for: there is to be no cliff.
UNTUNED = [(64, 16, 1), (64, 16, 7), (64, 16, 333), (64, 1, 128), (64, 300, 64), (1, 16, 128)]


def plain_cell(x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, o, g = linear(torch.cat((h, x), 1), weight, bias).chunk(3, 1)
    c = c + elu(g) * torch.sigmoid(i)
    return torch.tanh(c) * torch.sigmoid(o), c


def plain_loop(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
    """What a reader writes: the cell, step by step."""
    weight, bias = torch.cat((weight_hh, weight_ih), 1), bias_ih + bias_hh
    h = c = x.new_zeros(x.shape[1], weight_hh.shape[1])
    outputs = []
    for step in x:
        h, c = plain_cell(step, weight, bias, h, c)
        outputs.append(h)
    return torch.stack(outputs)


def measure(calls: Calls, rounds: int, sync: Callable[[], None]) -> dict[str, list[float]]:
    """Seconds a call, a figure a round; the calls take turns, so that what disturbs one disturbs all."""
    repeats = {}
    for name, call in calls.items():
        call()
        call()
        sync()
        start = time.perf_counter()
        call()
        sync()
        repeats[name] = max(1, int(0.004 / (time.perf_counter() - start)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            sync()
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            sync()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return times


class Bench:
    def __init__(self, device: str, rounds: int, file: Path | None = None) -> None:
        self.device, self.rounds, self.file = device, rounds, file
        self.rows: list[dict[str, Any]] = []
        gpu = device == "cuda"
        self.machine = (
            torch.cuda.get_device_name() if gpu else f"{platform.machine()}, {torch.get_num_threads()} threads"
        )
        self.sync = torch.cuda.synchronize if device == "cuda" else lambda: None

    def show(self, case: str, calls: Calls) -> None:
        times = measure(calls, self.rounds, self.sync)
        ours = times["opwright"]
        print(f"\n{case}")
        for name, taken in times.items():
            low = statistics.quantiles(taken, n=4)[0]
            ratio = statistics.median(a / b for a, b in zip(taken, ours, strict=True))
            least = min(taken) / min(ours)
            print(f"  {name:16s} {low * 1e3:10.3f} ms   {ratio:6.2f}×   (least times {least:.2f}×)", flush=True)
            self.keep(case, name, p25_ms=low * 1e3, ratio=ratio, ratio_of_least=least)

    def keep(self, case: str, variant: str, **figures: Any) -> None:
        """A row of results, on disk at once: what fails later loses nothing."""
        self.rows.append({"case": case, "variant": variant, "device": self.device, **figures})
        if self.file is not None:
            about = {"machine": self.machine, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
            self.file.write_text(json.dumps(about | {"figures": self.rows}, indent=1) + "\n", encoding="utf-8")

    def verify(self, case: str, variant: str, got: Tensor, exact: Tensor, most: float) -> None:
        """Who is wrong is not timed as if right: the row says so."""
        error = ((got.double() - exact).norm() / (exact.norm() or 1)).item()
        if not error < most:
            print(f"{case}: {variant} is WRONG, off by {error:.2g} of the whole", flush=True)
            self.keep(case, variant, wrong=error)

    def uniform(self, *shape: int, hidden: int, dtype: torch.dtype = torch.float32) -> Tensor:
        drawn = (torch.rand(shape, dtype=torch.float64) * 2 - 1) / hidden**0.5
        placed: Tensor = drawn.to(self.device, dtype)
        return placed

    # --- the cell ---------------------------------------------------------------------------------------------

    def cell(self, compiled: bool) -> None:
        from opwright.ops.lltm_cell.tutorial import lltm_cell_tensors

        functions: dict[str, Any] = {"opwright": ow.lltm_cell, "eager": plain_cell}
        if self.device == "cpu":
            functions["C++ on tensors"] = lltm_cell_tensors
        if compiled:
            functions["torch.compile"] = torch.compile(plain_cell)
        for batch, inputs, hidden in ((64, 1024, 128), (16, 32, 64), (64, 512, 512)):
            weight = self.uniform(3 * hidden, hidden + inputs, hidden=hidden)
            given = [self.uniform(batch, inputs, hidden=1), weight, self.uniform(3 * hidden, hidden=hidden)]
            given += [self.uniform(batch, hidden, hidden=1) for _ in range(2)]
            given = [t.requires_grad_() for t in given]
            grads = [torch.rand(batch, hidden, device=self.device) for _ in range(2)]

            def call(function: Any, given: list[Tensor] = given, grads: list[Tensor] = grads) -> Any:
                return torch.autograd.grad(tuple(function(*given)), given, grads)

            exact = [t.detach().double().requires_grad_() for t in given]
            expected = torch.autograd.grad(plain_cell(*exact), exact, [g.double() for g in grads])
            for name, function in functions.items():
                for got, right in zip(call(function), expected, strict=True):
                    self.verify(f"cell f+b, {batch}x{inputs}->{hidden}", name, got, right, 1e-5)
            calls: Calls = {n: lambda f=f, call=call: call(f) for n, f in functions.items()}  # type: ignore[misc]
            rows, gates = (
                torch.rand(batch, hidden + inputs, device=self.device),
                torch.rand(batch, 3 * hidden).to(weight),
            )
            plain = weight.detach()
            calls["three products"] = lambda r=rows, g=gates, w=plain: (r @ w.t(), g @ w, g.t() @ r)  # type: ignore[misc]
            # What no cell can be faster than: its products as PyTorch runs them, forward and through autograd's engine.
            leaves = [rows.requires_grad_(), weight]
            calls["linear alone"] = lambda v=leaves, g=gates: torch.autograd.grad(linear(*v), v, g)  # type: ignore[misc]
            if self.device == "cuda":
                calls["opwright, graph"] = _captured(calls["opwright"])
                calls["eager, graph"] = _captured(calls["eager"])
                for name in ("opwright", "eager", "linear alone"):
                    calls[f"{name}, one thread"] = _in_this_thread(calls[name])
            self.show(f"cell f+b, {batch}x{inputs}->{hidden}", calls)

    # --- the sequence -----------------------------------------------------------------------------------------

    def layer(self, steps: int, batch: int, size: int, dtype: torch.dtype = torch.float32) -> tuple[Any, Any, Tensor]:
        torch.manual_seed(0)
        ours = ow.nn.LLTM(size, size, device=self.device, dtype=dtype)
        theirs = torch.nn.LSTM(size, size, device=self.device, dtype=dtype)
        x = torch.randn(steps, batch, size, device=self.device, dtype=dtype).requires_grad_()
        return ours, theirs, x

    def sequence(self, shapes: list[tuple[int, int, int]], dtypes: list[torch.dtype]) -> None:
        for steps, batch, size in shapes:
            for dtype in dtypes:
                ours, theirs, x = self.layer(steps, batch, size, dtype)
                weights = list(ours.parameters())
                grad = torch.randn_like(x)
                self.verify_sequence(ours, x, grad)

                def both(function: Any, parameters: list[Tensor], x: Tensor = x, grad: Tensor = grad) -> Any:
                    return torch.autograd.grad(function(), [x, *parameters], grad)

                lstm = list(theirs.parameters())
                forward: Calls = {
                    "opwright": lambda ours=ours, x=x: ours(x)[0],  # type: ignore[misc]
                    "nn.LSTM": lambda theirs=theirs, x=x: theirs(x)[0],  # type: ignore[misc]
                    "Python loop": lambda x=x, weights=weights: plain_loop(x, *weights),  # type: ignore[misc]
                }
                name = f"T{steps} B{batch} {size} {str(dtype)[6:]}"
                self.show(f"sequence forward, recorded, {name}", forward)
                calls: Calls = {
                    n: lambda f=f, p=lstm if n == "nn.LSTM" else weights, both=both: both(f, p)  # type: ignore[misc]
                    for n, f in forward.items()
                }
                self.show(f"sequence f+b, {name}", calls)

    def verify_sequence(self, layer: Any, x: Tensor, grad: Tensor) -> None:
        """Output and gradients of a few steps against float64: over many, small errors grow by themselves."""
        few, weights = x[:32].detach().requires_grad_(), list(layer.parameters())
        output = layer(few)[0]
        found = torch.autograd.grad(output, [few, *weights], grad[:32])
        exact = [t.detach().double().requires_grad_() for t in (few, *weights)]
        right = plain_loop(*exact)
        expected = torch.autograd.grad(right, exact, grad[:32].double())
        most = 1e-5 if x.dtype == torch.float32 else 0.05
        for got, want in zip((output, *found), (right, *expected), strict=True):
            self.verify(f"sequence {tuple(x.shape)} {x.dtype}", "opwright", got, want, most)

    # --- memory -----------------------------------------------------------------------------------------------

    def peak(self, call: Callable[[], Any]) -> int:
        """Bytes at the most, beyond what there was before."""
        call()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call()
            return torch.cuda.max_memory_allocated() - before
        with torch.profiler.profile(profile_memory=True) as profile:
            call()
        events = json.loads(_trace(profile))["traceEvents"]
        changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
        level = most = 0
        for _, change in changes:
            level += change
            most = max(most, level)
        return most

    def memory(self, shapes: list[tuple[int, int, int]], dtypes: list[torch.dtype]) -> None:
        for steps, batch, size in shapes:
            for dtype in dtypes:
                ours, theirs, x = self.layer(steps, batch, size, dtype)
                print(f"\npeak memory f+b, T{steps} B{batch} {size} {str(dtype)[6:]}")
                for name, module in {"opwright": ours, "opwright, recompute": ours, "nn.LSTM": theirs}.items():
                    ours.recompute = "recompute" in name
                    parameters = [x, *module.parameters()]

                    def call(module: Any = module, parameters: list[Tensor] = parameters) -> Any:
                        out = module(parameters[0])[0]
                        return torch.autograd.grad(out, parameters, torch.ones_like(out))

                    used = self.peak(call)
                    print(f"  {name:20s} {used / 2**20:10.1f} MiB", flush=True)
                    self.keep(f"peak memory f+b, T{steps} B{batch} {size} {str(dtype)[6:]}", name, bytes=used)

    # --- numerics ---------------------------------------------------------------------------------------------

    def numerics(self, steps: int = 4096, batch: int = 64, size: int = 64) -> None:
        """Errors against float64, beside those of a loop of PyTorch's operators with a float cell state.

        Over so many steps a rounding may grow to anything, in a few sequences by chance, so that a figure over all of
        them says who was unlucky. What is compared is a sequence's error, by the median of the ratios.
        """
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            layer, _, x = self.layer(steps, batch, size, dtype)
            weights = list(layer.parameters())
            exact = plain_loop(x.detach().double(), *(w.detach().double() for w in weights))
            with torch.no_grad():
                ours = layer(x)[0]
                h, c = x.new_zeros(batch, size), torch.zeros(batch, size, device=self.device)
                outputs = []
                for step in x:
                    gates = linear(step, weights[0], weights[2]) + linear(h, weights[1], weights[3])
                    i, o, g = gates.chunk(3, 1)
                    c = c + (elu(g) * torch.sigmoid(i)).float()
                    h = (torch.tanh(c) * torch.sigmoid(o)).to(dtype)
                    outputs.append(h)
                found = {
                    name: (value.double() - exact).norm(dim=(0, 2)) / exact.norm(dim=(0, 2))
                    for name, value in (("opwright", ours), ("loop", torch.stack(outputs)))
                }
            print(f"\nerror against float64, T{steps} B{batch} {size} {str(dtype)[6:]}")
            for name, errors in found.items():
                error, ratio = errors.median().item(), (errors / found["loop"]).median().item()
                whole = (errors.square().mean() / found["loop"].square().mean()).sqrt().item()
                print(f"  {name:16s} {error:.2e}   {ratio:.2f} of the loop's   ({whole:.2f} over all)")
                self.keep(f"error at T{steps} {str(dtype)[6:]}", name, error=error, ratio=ratio, ratio_over_all=whole)


def _in_this_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call with autograd's engine in the caller's thread: to wake the GPU's own may take longer than all else."""

    def run() -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return call()

    return run


def _captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call as a CUDA graph."""
    on = torch.cuda.Stream()
    on.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(on):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(on)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def _trace(profile: Any) -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        return file.read_text(encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--compile", action="store_true", help="torch.compile's cell too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", action="append", choices=PARTS)
    options = parser.parse_args()
    bench = Bench(options.device, options.rounds, options.json)
    chosen = options.only or PARTS
    gpu = options.device == "cuda"
    shapes = [(512, 64, 1024), (256, 32, 512)] if gpu else [(128, 16, 128), (128, 32, 512)]
    dtypes = [torch.float32, torch.bfloat16] if gpu else [torch.float32]
    if "cell" in chosen:
        bench.cell(options.compile)
    if "sequence" in chosen:
        bench.sequence(shapes, dtypes)
    if "shapes" in chosen:
        bench.sequence(UNTUNED, dtypes[:1])
    if "memory" in chosen:
        bench.memory(shapes, dtypes)
    if "numerics" in chosen:
        bench.numerics()


if __name__ == "__main__":
    main()
