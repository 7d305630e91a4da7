"""Modules without parameters."""

from __future__ import annotations

from torch import Tensor, nn

from opwright.kit.spec.kinds import Number
from opwright.ops.cube.op import cube, cube_
from opwright.ops.scale.op import scale, scale_
from opwright.ops.sigmoid.op import sigmoid, sigmoid_


class _Elementwise(nn.Module):
    """A module without parameters whose operator may write into its input."""

    __constants__ = ("inplace",)  # torch.jit.script leaves the other branch out

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class Sigmoid(_Elementwise):
    """1 / (1 + e⁻ˣ), in place of torch.nn.Sigmoid.

    >>> import torch, opwright as ow
    >>> ow.nn.Sigmoid()(torch.zeros(2))
    tensor([0.5000, 0.5000])
    """

    def forward(self, input: Tensor) -> Tensor:
        if self.inplace:
            written: Tensor = sigmoid_(input)
            return written
        return sigmoid(input)


class Cube(_Elementwise):
    """x³.

    >>> import torch, opwright as ow
    >>> ow.nn.Cube()(torch.tensor([2.0]))
    tensor([8.])
    """

    def forward(self, input: Tensor) -> Tensor:
        if self.inplace:
            written: Tensor = cube_(input)
            return written
        return cube(input)


class Scale(_Elementwise):
    """x times a fixed number.

    >>> import torch, opwright as ow
    >>> ow.nn.Scale(0.5)
    Scale(factor=0.5)
    """

    def __init__(self, factor: Number, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.factor = factor

    def forward(self, input: Tensor) -> Tensor:
        if self.inplace:
            written: Tensor = scale_(input, self.factor)
            return written
        return scale(input, self.factor)

    def extra_repr(self) -> str:
        return ", ".join(filter(None, (f"factor={self.factor}", super().extra_repr())))
