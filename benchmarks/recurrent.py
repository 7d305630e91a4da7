"""LLTM over sequences against cuDNN's LSTM, on a GPU: time, peak memory and error, in turns in one run.

    python benchmarks/recurrent.py [--json FILE] [--rounds N] [--only TEXT]

Both are the modules, ow.nn.LLTM and nn.LSTM, with the host's part. LSTM has four gates where LLTM has three. TF32 is
off on both sides. An error is the norm of the difference from the same module in float64, as a part of the values' own.
LLTM forgets nothing and makes more of any rounding from step to step, so that it is that of 64 steps, beside the error
of a plain loop in the same dtype and that of cuDNN's LSTM.

Then what a step takes on each path, all else included, of as many steps as are launched one by one and of as many as
are replayed; and both directions of a layer, one after the other and at the same time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from lltm import plain_loop
from see_through import heading

import opwright as ow

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
DTYPES = HALVES | {"fp32": torch.float32, "fp64": torch.float64}
WAYS = ("without_gradient", "both")


class Case(NamedTuple):
    """A row: steps, batch, size, dtype; and what is allowed, forward and with the backward."""

    steps: int
    batch: int
    size: int
    dtype: str
    limit: float | tuple[float, float] | None = None
    unit: str = ""  # of the limit: milliseconds, or the time of cuDNN's in some dtype, or of another row's
    layers: int = 1

    @property
    def name(self) -> str:
        more = ", two layers, both directions, packed" if self.layers == 2 else ""
        return f"{self.steps}, {self.batch}, {self.size} {self.dtype}{more}"


CASES = [
    *(Case(512, 64, 1024, dtype, (2.0, 6.0), "ms") for dtype in HALVES),
    *(Case(1024, 16, 768, dtype, 0.85, "cuDNN fp16") for dtype in HALVES),
    *(Case(256, 32, 512, dtype, 0.7, "cuDNN fp16") for dtype in HALVES),
    Case(300, 24, 320, "bf16", 0.3, "cuDNN bf16"),
    Case(512, 64, 1024, "fp32", 0.55, "cuDNN fp32"),
    Case(256, 32, 512, "bf16", 0.5, "cuDNN bf16", layers=2),
    Case(512, 64, 1000, "bf16", 1.15, "512, 64, 1024 bf16"),
    Case(512, 50, 1024, "bf16", 1.15, "512, 64, 1024 bf16"),
    Case(100, 1, 256, "fp32", 0.3, "cuDNN fp32"),
    Case(128, 200, 1024, "bf16"),
    Case(128, 8, 2048, "bf16"),
    Case(256, 8, 1536, "fp32"),  # does not fit on chip
]


# Batch, size and dtype of what is tried on a path. The first three do not fit on chip, or have no other path.
LOOPED = [(8, 2560, "bf16"), (8, 1536, "fp32"), (8, 256, "fp64"), (64, 1024, "bf16"), (256, 1024, "bf16")]
PERSISTENT = [(64, 1024, "bf16"), (64, 1024, "fp32"), (8, 256, "bf16")]
DIRECTIONS = [(1024, 8, 256), (2048, 8, 512), (512, 8, 1024)]


class Layer:
    """One of the two modules with an input."""

    def __init__(
        self,
        kind: Callable[..., torch.nn.Module],
        case: Case,
        dtype: torch.dtype,
        plain: bool = False,
        directions: int = 1,
    ) -> None:
        self.plain = plain
        torch.manual_seed(0)
        two = case.layers == 2
        self.module = kind(case.size, case.size, case.layers, bidirectional=two or directions == 2).cuda()
        x = torch.randn(case.steps, case.batch, case.size, device="cuda")
        self.module = self.module.to(dtype)
        if isinstance(self.module, torch.nn.LSTM):
            self.module.flatten_parameters()
        self.x: Any = x.to(dtype).requires_grad_()
        if two:
            lengths = [case.steps - case.steps // 2 * i // case.batch for i in range(case.batch)]
            packed = torch.nn.utils.rnn.pack_padded_sequence(self.x.detach(), lengths)
            self.x = packed._replace(data=packed.data.requires_grad_())

    def forward(self) -> Tensor:
        if self.plain:
            return plain_loop(self.x, *self.module.parameters())
        out = self.module(self.x)[0]
        return out if isinstance(out, Tensor) else out.data

    def without_gradient(self) -> Tensor:
        with torch.no_grad():
            return self.forward()

    def both(self) -> Tensor:
        out = self.forward()
        if not hasattr(self, "grad"):
            self.grad = torch.ones_like(out)
        out.backward(self.grad)
        return out


def times(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Milliseconds a call, the median of rounds in which the calls take turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            for _ in range(3):
                call()
            end.record()
            torch.cuda.synchronize()
            found[name].append(start.elapsed_time(end) / 3)
    return {name: statistics.median(each) for name, each in found.items()}


def peak(layer: Layer) -> float:
    """The most megabytes that a forward and backward hold beyond what was there before."""
    layer.module.zero_grad()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    layer.both()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def errors(kind: Callable[..., torch.nn.Module], case: Case, plain: bool = False) -> dict[str, float]:
    """Of the output and of the weights' gradients, against the module in float64 with the same numbers."""
    case = case._replace(steps=min(case.steps, 64))
    layer, exact = Layer(kind, case, DTYPES[case.dtype], plain), Layer(kind, case, torch.float64)
    exact.module.load_state_dict({k: v.double() for k, v in layer.module.state_dict().items()})
    exact.x = layer.x.double()
    found, right = layer.forward(), exact.forward()
    grad = torch.randn_like(found) * 0.01
    gradients = torch.autograd.grad(found, list(layer.module.parameters()), grad)
    rights = torch.autograd.grad(right, list(exact.module.parameters()), grad.double())
    return {
        "output": off(found, right),
        "gradients": max(off(a, b) for a, b in zip(gradients, rights, strict=True)),
    }


@torch.no_grad()
def off(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def measure(case: Case, rounds: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A row; `rows` are those before it, one of which may be its unit."""
    layers = {
        "ours": Layer(ow.nn.LLTM, case, DTYPES[case.dtype]),
        "cudnn": Layer(torch.nn.LSTM, case, DTYPES[case.dtype]),
    }
    if case.unit == "cuDNN fp16" and case.dtype != "fp16":
        layers["other"] = Layer(torch.nn.LSTM, case, torch.float16)
    row: dict[str, Any] = {"case": case.name, "unit": case.unit, "found": []}
    row["limit"] = case.limit if case.limit is None or isinstance(case.limit, tuple) else (case.limit,) * 2
    for what in WAYS:
        took = row[what] = times({name: getattr(layer, what) for name, layer in layers.items()}, rounds)
        if case.unit.startswith("cuDNN"):
            unit = took.get("other", took["cudnn"])
        else:
            unit = 1.0 if case.unit in ("", "ms") else next(r for r in rows if r["case"] == case.unit)[what]["ours"]
        row["found"].append(took["ours"] / unit)
    row["peak"] = {name: peak(layers[name]) for name in ("ours", "cudnn")}
    row["error"] = {"ours": errors(ow.nn.LLTM, case), "cudnn": errors(torch.nn.LSTM, case)}
    if case.layers == 1:
        row["error"]["plain"] = errors(ow.nn.LLTM, case, plain=True)
    return row


def paths(rounds: int) -> list[dict[str, Any]]:
    """Microseconds a step, forward and with the backward."""
    rows = []
    for path, cases in (("looped", LOOPED), ("persistent", PERSISTENT)):
        os.environ["OPWRIGHT_LLTM"] = path
        for (batch, size, dtype), steps in itertools.product(cases, (47, 512) if path == "looped" else (512,)):
            layer = Layer(ow.nn.LLTM, Case(steps, batch, size, dtype), DTYPES[dtype])
            took = [times({"ours": getattr(layer, what)}, rounds)["ours"] * 1000 / steps for what in WAYS]
            rows.append({"path": path, "case": f"{steps}, {batch}, {size} {dtype}", "step": took})
            print(f"{path:10} {rows[-1]['case']:24} {took[0]:6.2f} / {took[1]:6.2f} us a step", flush=True)
    del os.environ["OPWRIGHT_LLTM"]
    return rows


def directions(rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of a layer in both directions, in bfloat16."""
    rows = []
    for shape in DIRECTIONS:
        layer = Layer(ow.nn.LLTM, Case(*shape, "bf16"), torch.bfloat16, directions=2)
        row: dict[str, Any] = {"case": ", ".join(map(str, shape))}
        for what in WAYS:
            row[what] = {}
            for name, least in (("after", 1 << 40), ("beside", 1)):
                with mock.patch("opwright.nn.lltm.STEPS_BESIDE", least):
                    row[what][name] = times({name: getattr(layer, what)}, rounds)[name]
        rows.append(row)
        print("directions", row, flush=True)
    return rows


def show(row: dict[str, Any]) -> str:
    """A line for the terminal."""
    forward, both = (row[what] for what in WAYS)
    wanted = "" if row["limit"] is None else " of {} / {}".format(*row["limit"])
    return (
        f"{row['case']:60} ours {forward['ours']:6.2f} / {both['ours']:6.2f} ms, "
        f"cuDNN {forward['cudnn']:6.2f} / {both['cudnn']:6.2f}, "
        f"{row['found'][0]:.2f} / {row['found'][1]:.2f}{wanted} {row['unit']}; "
        f"peak {row['peak']['ours']:.0f} of {row['peak']['cudnn']:.0f} MB; error "
        + ", ".join(f"{who} {e['output']:.1e} {e['gradients']:.1e}" for who, e in row["error"].items())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", help="rows whose name has this in it")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if options.only and options.only not in case.name:
            continue
        rows.append(measure(case, options.rounds, rows))
        print(show(rows[-1]), flush=True)
        store(options.json, {"rows": rows})
    if options.only:
        return
    found: dict[str, Any] = {"rows": rows, "paths": paths(options.rounds)}
    store(options.json, found)
    store(options.json, found | {"directions": directions(options.rounds)})


def store(file: Path | None, found: dict[str, Any]) -> None:
    """After each part: who is cut short has those before."""
    if file is not None:
        file.write_text(json.dumps(heading() | found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
