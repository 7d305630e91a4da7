"""The arithmetic of conv_bn in plain PyTorch: what its reference and its gradient are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

import opwright as ow

AXES = (0, 2, 3)


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums and statistics are computed in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def refuse(
    x: Tensor,
    weight: Tensor,
    channels: dict[str, Tensor | None],
    residual: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    eps: float,
    ranks: int,
) -> None:
    """Raise for what no convolution with a batch norm behind it can be made of."""
    ow.require(x.is_floating_point(), "x must be a floating-point tensor, got {x.dtype}", NotImplementedError)
    ow.require(x.dim() == 4, "x must have shape [batch, channels, height, width], got {x.shape}")
    ow.require(weight.dim() == 4, "weight must have shape [out, in / groups, height, width], got {weight.shape}")
    ow.require(weight.device == x.device, "weight must be on {x.device}, as x is, got {weight.device}")
    ow.require(weight.dtype == x.dtype, "weight must be {x.dtype}, as x is, got {weight.dtype}")
    for name, pair in (("stride", stride), ("padding", padding), ("dilation", dilation)):
        least = 0 if name == "padding" else 1
        ow.require(len(pair) == 2 and min(pair) >= least, "{name} must be two numbers of at least {least}, got {pair}")
    ow.require(
        groups > 0 and x.shape[1] % groups == 0, "groups must divide the {x.shape[1]} channels of x, got {groups}"
    )
    ow.require(
        weight.shape[0] % groups == 0, "groups must divide the {weight.shape[0]} channels of weight, got {groups}"
    )
    inside = x.shape[1] // groups
    ow.require(
        weight.shape[1] == inside,
        "weight must take the {x.shape[1]} channels of x in {groups} groups, {inside} each, got {weight.shape}",
    )
    # PyTorch's own convolution computes something without channels, which no batch norm can be made of.
    ow.require(weight.numel() > 0, "weight must have entries, got {weight.shape}")
    sizes = tuple(
        (x.shape[d + 2] + 2 * padding[d] - dilation[d] * (weight.shape[d + 2] - 1) - 1) // stride[d] + 1 for d in (0, 1)
    )
    ow.require(
        sizes[0] > 0 and sizes[1] > 0,
        "weight must fit into the padded x, got a kernel of {weight.shape} over {x.shape}",
    )
    out = weight.shape[0]
    for name, each in channels.items():  # noqa: B007  the message reads it
        got = None if each is None else tuple(each.shape)
        ow.require(got is None or got == (out,), "{name} must have one entry for each of the {out} channels, got {got}")
    shape = (x.shape[0], out, *sizes)
    ow.require(
        residual is None or tuple(residual.shape) == shape,
        "residual must have the shape of the output, {shape}, got {residual.shape}",
    )
    batch = channels["running_mean"] is None
    ow.require(eps > 0 or (eps == 0 and not batch), "eps must be positive, got {eps}")
    if batch and ranks < 2:
        values = x.shape[0] * sizes[0] * sizes[1]
        ow.require(values != 1, "Expected more than 1 value per channel when training, got input size {shape}")


def activate(z: Tensor, activation: str, slope: float) -> Tensor:
    """The activation of z."""
    if activation == "relu":
        return torch.relu(z)
    if activation == "leaky_relu":
        return torch.where(z > 0, z, slope * z)
    if activation == "elu":
        return torch.where(z > 0, z, slope * torch.expm1(torch.clamp(z, max=0)))
    if activation == "silu":
        return z * torch.sigmoid(z)
    if activation == "gelu":
        return 0.5 * z * (1 + torch.erf(z * math.sqrt(0.5)))
    return z


def derivative(z: Tensor, activation: str, slope: float) -> Tensor:
    """The derivative of the activation at z."""
    if activation == "relu":
        return (z > 0).to(z.dtype)
    if activation == "leaky_relu":
        return torch.where(z > 0, torch.ones_like(z), torch.full_like(z, slope))
    if activation == "elu":
        return torch.where(z > 0, torch.ones_like(z), slope * torch.exp(torch.clamp(z, max=0)))
    if activation == "silu":
        s = torch.sigmoid(z)
        return s * (1 + z * (1 - s))
    density = torch.exp(-0.5 * z * z) * math.sqrt(0.5 / math.pi)
    return 0.5 * (1 + torch.erf(z * math.sqrt(0.5))) + z * density


def follows_output(activation: str, slope: float) -> bool:
    """Whether the derivative of the activation follows from what it returns."""
    return activation == "relu" or (activation in ("leaky_relu", "elu") and slope >= 0)


def derivative_of_output(out: Tensor, activation: str, slope: float) -> Tensor:
    """The same from what the activation returned, where it follows from that."""
    below = out + slope if activation == "elu" else torch.full_like(out, slope if activation == "leaky_relu" else 0.0)
    return torch.where(out > 0, torch.ones_like(out), below)


def spread(channel: Tensor) -> Tensor:
    """A number for each channel, as it broadcasts over an image."""
    return channel[:, None, None]


def moments(wide: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel, over all images and places."""
    mean = wide.mean(AXES)
    return mean, (wide - spread(mean)).square().mean(AXES)
