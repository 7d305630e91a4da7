"""Forwards of which a trace does not tell all, each around one convolution with its batch norm."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

KEPT: list[Any] = []


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU()
        self.register_buffer("calls", torch.zeros(()))
        self.scale, self.count, self.seen = 2.0, 0, [0]
        self.calls: Tensor
        self.last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))  # type: ignore[no-any-return]


class Counts(Body):
    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return super().forward(x)


class CountsInABuffer(Body):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class CountsInAList(Body):
    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(1)
        return super().forward(x)


class Remembers(Body):
    def forward(self, x: Tensor) -> Tensor:
        self.last = super().forward(x)
        return self.last  # type: ignore[no-any-return]


class Hands(Body):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        KEPT.append(y)
        return y


class Quiet(Body):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.conv(x)
        return self.bn(y)  # type: ignore[no-any-return]


class Loud(Body):
    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            return self.bn(self.conv(x))  # type: ignore[no-any-return]


class Wide(Body):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.bn(self.conv(x))  # type: ignore[no-any-return]


class Checkpoints(Body):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)  # type: ignore[no-any-return]


class ChecksPoints(Body):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=True)  # type: ignore[no-any-return]


class OnCpu(Body):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return super().forward(x)


class Drops(Body):
    def forward(self, x: Tensor) -> Tensor:
        return x if random.random() < 0.5 else super().forward(x)


class DropsByTorch(Body):
    def forward(self, x: Tensor) -> Tensor:
        return x if torch.rand(()) < 0.5 else super().forward(x)


class Types(Body):
    def forward(self, x: Tensor | list[Tensor]) -> Tensor:
        return super().forward(x if isinstance(x, Tensor) else torch.cat(x))


class Parameters(Body):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 2 if isinstance(x, nn.Parameter) else x)


class Writes(Body):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        y = self.conv(x)
        x.mul_(x)
        return self.bn(y)  # type: ignore[no-any-return]


class WritesLater(Body):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        y = self.bn(self.conv(x))
        return y + x.mul_(2)  # type: ignore[no-any-return]


class WritesToData(Body):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        y = self.conv(x)
        x.data.mul_(x)
        return self.bn(y)  # type: ignore[no-any-return]


class AsksAPart(Body):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), 0.5, self.bn.training)


class WritesToABase(Body):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        y = super().forward(x[:, :])
        x.zero_()
        return y + x


LEFT = {
    Counts: "it sets self.count",
    CountsInABuffer: "it sets self.calls",
    CountsInAList: "it changes self.seen",
    Remembers: "it sets self.last",
    Hands: "it keeps a tensor beyond the call",
    Quiet: "works under a mode of its own",
    Loud: "works under a mode of its own",
    Wide: "works under a mode of its own",
    Checkpoints: "",
    ChecksPoints: "",
    OnCpu: "works under a mode of its own",
    Drops: "it draws random numbers outside of PyTorch",
    DropsByTorch: "it computes with tensors that come from nowhere",
    Types: "it asks for the type of what it is given",
    Parameters: "it asks for the type of what it is given",
    Writes: "something is written between it and its batch norm",
    AsksAPart: "it depends on whether another module is training",
    WritesToABase: "what it reads is written",
    WritesLater: "what it reads is written",
    WritesToData: "something is written between it and its batch norm",
}
