"""What conv_bn keeps and costs in training, against Conv2d + BatchNorm2d + ReLU in eager mode and under torch.compile.

    python benchmarks/conv_bn.py [--device cuda|cpu] [--json FILE] [--no-compile]

On a GPU: device times of forward and backward from a CUDA graph, in turns within one run; memory as PyTorch's allocator
counts it, the first input and the incoming gradient not counted, the last output counted. Verified before it is timed.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import opwright as ow
from opwright.kit.bench.machine import machine, versions

# batch, in, out, size, kernel, dtype, channels_last, activation, keep, limit of ours / eager, stretch
ROWS: dict[str, tuple[Any, ...]] = {
    "3×3, 64→64, 56²": (64, 64, 64, 56, 3, torch.bfloat16, True, "relu", "input", 0.87, 0.77),
    "1×1, 64→256, 56²": (64, 64, 256, 56, 1, torch.bfloat16, True, "relu", "input", 0.75, 0.62),
    "1×1, 256→64, 56²": (64, 256, 64, 56, 1, torch.bfloat16, True, "relu", "input", 0.95, 0.85),
    "3×3, 512→512, 14²": (32, 512, 512, 14, 3, torch.bfloat16, True, "relu", "input", 1.25, 1.15),
    "3×3, 64→64, 56², float32 NCHW": (64, 64, 64, 56, 3, torch.float32, False, "relu", "input", 0.95, 0.8),
    'keep="output", leaky_relu': (64, 64, 64, 56, 3, torch.bfloat16, True, "leaky_relu", "output", 0.7, 0.62),
    'keep="all"': (64, 64, 64, 56, 3, torch.bfloat16, True, "relu", "all", 0.75, 0.65),
}
COMPILED = ("3×3, 64→64, 56²", "1×1, 64→256, 56²", "1×1, 256→64, 56²")
CPU = {"3×3, 32→32, 56², float32": (8, 32, 32, 56, 3, torch.float32, False, "relu", "input", 1.2, 1.05)}


class Eager(nn.Module):
    """The layers that conv_bn stands for."""

    def __init__(self, conv: nn.Conv2d, bn: nn.BatchNorm2d, activation: str) -> None:
        super().__init__()
        self.conv, self.bn = conv, bn
        self.act = nn.LeakyReLU() if activation == "leaky_relu" else nn.ReLU()

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y = self.bn(self.conv(x))
        return self.act(y if residual is None else y + residual)  # type: ignore[no-any-return]


def layers(row: tuple[Any, ...], device: str) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """Eager and ours with equal parameters, an input and an incoming gradient."""
    batch, inside, out, size, kernel, dtype, last, activation, keep, *_ = row
    torch.manual_seed(0)
    layout = torch.channels_last if last else torch.contiguous_format
    ours = ow.nn.ConvBN2d(inside, out, kernel, padding=kernel // 2, bias=False, activation=activation, keep=keep)
    ours = ours.to(device, dtype).to(memory_format=layout)  # type: ignore[call-overload]
    ours.bn.float()  # as autocast has them
    eager = Eager(nn.Conv2d(inside, out, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(out), activation)
    eager = eager.to(device, dtype).to(memory_format=layout)  # type: ignore[call-overload]
    eager.bn.float()
    eager.load_state_dict(ours.state_dict())
    x = torch.randn(batch, inside, size, size, device=device).to(dtype).contiguous(memory_format=layout)
    grad = torch.randn(batch, out, size, size, device=device).to(dtype).contiguous(memory_format=layout)
    return eager, ours, x.requires_grad_(), grad


def step(model: nn.Module, x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    out = model(x)
    return out, *torch.autograd.grad(out, [x, *model.parameters()], grad)


def wrong(eager: nn.Module, ours: nn.Module, x: Tensor, grad: Tensor) -> str | None:
    """None where ours is as right as eager mode: both against eager mode in float64."""
    exact = copy.deepcopy(eager).double()
    wide = x.detach().double().requires_grad_()
    true, one, two = step(exact, wide, grad.double()), step(eager, x, grad), step(ours, x, grad)
    for t, a, b in zip(true, one, two, strict=True):
        size = t.abs().max()
        theirs, own = (a - t).abs().mean() / size, (b - t).abs().mean() / size
        if own > 1.5 * theirs + 1e-6:
            return f"ours is {own:.2e} off where eager is {theirs:.2e}"
    return None


def graphed(function: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """A function as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def device_times(functions: dict[str, Callable[[], Any]], rounds: int = 9) -> dict[str, float]:
    """Milliseconds of each on the device, in turns: the median of means over 10 replays."""
    graphs = {name: graphed(f) for name, f in functions.items()}
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            graph.replay()
            start.record()
            for _ in range(10):
                graph.replay()
            end.record()
            end.synchronize()
            found[name].append(start.elapsed_time(end) / 10)
    return {name: statistics.median(times) for name, times in found.items()}


def host_times(functions: dict[str, Callable[[], Any]], wait: Callable[[], Any], rounds: int = 15) -> dict[str, float]:
    """Milliseconds of each with the host, in turns."""
    found: dict[str, list[float]] = {name: [] for name in functions}
    for f in functions.values():
        for _ in range(3):
            f()
    for _ in range(rounds):
        for name, f in functions.items():
            wait()
            start = time.perf_counter()
            f()
            wait()
            found[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(times) for name, times in found.items()}


class Blocks(nn.Module):
    """Blocks in a row, each with its input as a residual if asked."""

    def __init__(self, blocks: list[nn.Module], residual: bool) -> None:
        super().__init__()
        self.blocks, self.residual = nn.ModuleList(blocks), residual

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, x) if self.residual else block(x)
        return x


def memory(model: nn.Module, x: Tensor, grad: Tensor) -> dict[str, float]:
    """Megabytes that live after the forward, and at most until the end of the backward."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    x.grad = torch.zeros_like(x)
    for _ in range(2):
        model(x).backward(grad)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()

    def requested(which: str) -> int:
        """Without what the allocator rounds up to, which depends on what came before."""
        return int(torch.cuda.memory_stats()[f"requested_bytes.all.{which}"])

    before = requested("current")
    out = model(x)
    kept = requested("current") - before
    out.backward(grad)
    torch.cuda.synchronize()
    return {"kept_mb": kept / 1e6, "peak_mb": (requested("peak") - before) / 1e6}


def blocks(residual: bool) -> dict[str, Any]:
    """Eight blocks of the first row: memory, and time with the host."""
    row = ROWS["3×3, 64→64, 56²"]
    made = [layers(row, "cuda") for _ in range(8)]
    x, grad = made[0][2].detach().requires_grad_(), made[0][3]
    models = {"eager": Blocks([m[0] for m in made], residual), "ours": Blocks([m[1] for m in made], residual)}
    del made
    found: dict[str, Any] = {name: memory(model, x, grad) for name, model in models.items()}
    for p in [x, *(p for m in models.values() for p in m.parameters())]:
        p.grad = None
    steps: dict[str, Callable[[], Any]] = {n: partial(step, m, x, grad) for n, m in models.items()}
    times = host_times(steps, torch.cuda.synchronize)
    in_a_row = host_times({n: partial(several, f) for n, f in steps.items()}, torch.cuda.synchronize)
    for name, ms in times.items():
        found[name] |= {"host_ms": ms, "in_a_row_ms": in_a_row[name] / IN_A_ROW}
    return found


IN_A_ROW = 8
"""Steps of a training that nobody waits for."""


def several(step: Callable[[], Any]) -> None:
    for _ in range(IN_A_ROW):
        step()


def say(text: str) -> None:
    print(text, flush=True)


def on_gpu(compiled: bool, save: Callable[[dict[str, Any]], None]) -> None:
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {"rows": rows}
    for name, row in ROWS.items():
        eager, ours, x, grad = layers(row, "cuda")
        if why := wrong(eager, ours, x, grad):
            say(f"{name}: {why}")
            continue
        found = device_times({"eager": lambda: step(eager, x, grad), "ours": lambda: step(ours, x, grad)})  # noqa: B023
        ratio = found["ours"] / found["eager"]
        rows.append({"row": name, "ms": found, "ratio": ratio, "limit": row[-2], "stretch": row[-1]})
        say(f"{name:32} eager {found['eager']:.3f} ours {found['ours']:.3f} ms, {ratio:.2f} (at most {row[-2]})")
    save(result)
    for name, residual in (("blocks", False), ("residual blocks", True)):
        result[name] = blocks(residual)
        say(f"{name}: {json.dumps(result[name])}")
        save(result)
    for name in COMPILED if compiled else ():
        eager, ours, x, grad = layers(ROWS[name], "cuda")
        fast = torch.compile(eager)
        every: dict[str, Any] = {"eager": eager, "ours": ours, "compile": fast}
        if name == COMPILED[0]:
            every["all"] = layers(ROWS['keep="all"'], "cuda")[1]
        times = device_times({n: partial(step, m, x, grad) for n, m in every.items()})
        result.setdefault("compiled", []).append({"row": name, "ms": times})
        say(f"{name}, in turns with torch.compile: {json.dumps(times)}")
        save(result)


def on_cpu(save: Callable[[dict[str, Any]], None]) -> None:
    rows = []
    for name, row in CPU.items():
        eager, ours, x, grad = layers(row, "cpu")
        if why := wrong(eager, ours, x, grad):
            say(f"{name}: {why}")
            continue
        found = host_times({"eager": lambda: step(eager, x, grad), "ours": lambda: step(ours, x, grad)}, int, 40)  # noqa: B023
        ratio = found["ours"] / found["eager"]
        rows.append({"row": name, "ms": found, "ratio": ratio, "limit": row[-2], "stretch": row[-1]})
        say(f"{name:32} eager {found['eager']:.2f} ours {found['ours']:.2f} ms, {ratio:.2f} (at most {row[-2]})")
    save({"rows": rows})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-compile", action="store_true")
    given = parser.parse_args()
    stamp = {"machine": machine(), "versions": versions(), "date": datetime.date.today().isoformat()}

    def save(found: dict[str, Any]) -> None:
        """What there is so far."""
        if given.json:
            given.json.write_text(json.dumps(found | stamp, indent=1) + "\n", encoding="utf-8")

    on_gpu(not given.no_compile, save) if given.device == "cuda" else on_cpu(save)
