"""A small ResNet on synthetic images, trained three times: in eager mode, in eager mode with the images in another
order, and with ow.nn.fuse_conv_bn in the order of the first. Losses, memory, and time a step.

    python benchmarks/conv_bn_training.py [--json FILE] [--steps N]
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import opwright as ow
from opwright.kit.bench.machine import machine, versions


class Block(nn.Module):
    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        same = stride == 1 and inside == out
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + self.shortcut(x)
        return self.relu(out)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """Three stages of two blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        stages = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        self.blocks = nn.Sequential(*(b for i, o, s in stages for b in (Block(i, o, s), Block(o, o, 1))))
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.relu(self.bn(self.conv(x))))
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def images(count: int, size: int) -> tuple[Tensor, Tensor]:
    """Ten kinds of waves under noise: enough to learn, and not at once."""
    generator = torch.Generator().manual_seed(1)
    kinds = torch.randint(10, (count,), generator=generator)
    place = torch.linspace(0, 3, size)
    waves = torch.sin(place[None, :, None] * (1 + kinds[:, None, None] % 5) + place * (kinds[:, None, None] // 5 * 2))
    return waves[:, None] + 1.5 * torch.randn(count, 3, size, size, generator=generator), kinds


def train(fused: bool, order: int, steps: int, device: str, batch: int, width: int, size: int) -> dict[str, Any]:
    torch.manual_seed(0)
    on_gpu = device == "cuda"
    model: nn.Module = ResNet(width).to(device)
    x, target = images(8 * batch, size)
    x = x.to(device)
    if on_gpu:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = ow.nn.fuse_conv_bn(model) if fused else model
    target = target.to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(order)
    losses, times = [], []
    for step in range(steps):
        if step % 8 == 0:
            shuffled = torch.randperm(len(x), generator=generator).to(device)
        start = time.perf_counter()
        chosen = shuffled[step % 8 * batch : (step % 8 + 1) * batch]
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=on_gpu):
            loss = F.cross_entropy(model(x[chosen]).float(), target[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() / 1e6 if on_gpu else None
    return {"losses": losses, "ms": statistics.median(times[5:]) * 1e3, "peak_mb": peak}


def gap(one: list[float], two: list[float]) -> float:
    """How far apart two curves are, in the mean."""
    return statistics.mean(abs(a - b) for a, b in zip(one, two, strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=int, default=80)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = (256, 64, 56) if device == "cuda" else (16, 8, 16)
    runs = {
        name: train(fused, order, given.steps, device, *shape)
        for name, fused, order in (("eager", False, 0), ("eager, other order", False, 1), ("fused", True, 0))
    }
    curves = [runs[name]["losses"] for name in runs]
    found = {
        "runs": runs,
        "gap_of_eager_runs": gap(curves[0], curves[1]),
        "gap_of_fused": gap(curves[0], curves[2]),
        "shape": dict(zip(("batch", "width", "size"), shape, strict=True)),
        "machine": machine(),
        "versions": versions(),
        "date": datetime.date.today().isoformat(),
    }
    for name, run in runs.items():
        memory = "" if run["peak_mb"] is None else f", peak {run['peak_mb']:.0f} MB"
        print(f"{name:20} loss {run['losses'][0]:.3f} → {run['losses'][-1]:.3f}, {run['ms']:.1f} ms a step{memory}")
    print(f"apart: two eager runs {found['gap_of_eager_runs']:.4f}, fused and eager {found['gap_of_fused']:.4f}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
