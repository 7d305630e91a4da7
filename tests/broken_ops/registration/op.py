"""What PyTorch is told about an operator: fake kernels, batching, autocast, versions, graphs."""

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import opwright as ow

FLOATS = (torch.float32, torch.float64)
ANY = ow.Domain(dtypes=FLOATS)
BY_HAND = torch.library.Library("broken", "FRAGMENT")


def matrices(make: ow.Maker) -> Iterator[Any]:
    for shape in ((3, 4), (1, 5), (4, 4)):
        yield make(*shape)


@ow.op(namespace="broken")
def batched_wrong(x: Tensor) -> Tensor:
    """x less its mean; its batching rule takes the mean over the batch as well."""
    return x - x.mean()


@ow.op(namespace="broken", vmap="leading")
def leading_wrong(x: Tensor) -> Tensor:
    """x less its mean; its author says that leading dimensions are a batch, and it takes the mean over them as well."""
    return x - x.mean()


@ow.op(namespace="broken")
def autocast_dtype(x: Tensor, y: Tensor) -> Tensor:
    """x @ y; under autocast it stays in float32, where its reference would be in bfloat16."""
    ow.require(x.dim() == 2 and y.dim() == 2 and x.shape[1] == y.shape[0], "x and y must be matrices that multiply")
    return x @ y


@ow.op(namespace="broken")
def fake_shape(x: Tensor) -> Tensor:
    """The sum of each row; its fake kernel keeps the last dimension."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.sum(-1)


@ow.op(namespace="broken")
def kernel_shape(x: Tensor) -> Tensor:
    """The sum of each row; its kernel keeps the last dimension."""
    ow.require(x.dim() == 2, "x must have shape [n, k], got {x.shape}")
    return x.sum(-1)


@ow.op(namespace="broken")
def dtype_changed(x: Tensor) -> Tensor:
    """x + 1; its kernel gives float32 for every dtype."""
    return x + 1


@ow.op(namespace="broken")
def reads_a_value(x: Tensor) -> Tensor:
    """x divided by its largest element, which is read as a Python number: no fake tensor has one."""
    return x / max(float(x.abs().max()), 1.0)


@ow.op(namespace="broken")
def unmarked_(x: Tensor) -> Tensor:
    """x doubled in place, behind the back of autograd, which goes on to use what was saved of x."""
    return x.mul_(2)


@ow.op(namespace="broken", compile="inline")
def compiled_otherwise(x: Tensor) -> Tensor:
    """gelu(x); when compiled, an approximation of it."""
    return torch.nn.functional.gelu(x, approximate="tanh" if torch.compiler.is_compiling() else "none")


@ow.op(namespace="broken")
def graph_lost(x: Tensor) -> Tensor:
    """3 · x; what was registered for autograd by hand records nothing."""
    return x * 3


@ow.op(namespace="broken")
def list_short(xs: list[Tensor]) -> Tensor:
    """The sum of some tensors; leaves out the last where there are more than two."""
    ow.require(len(xs) > 0, "xs must hold a tensor")
    total = xs[0] + 0
    for x in xs[1:]:
        total = total + x
    return total


@ow.op(namespace="broken")
def option_ignored(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """2 · x + bias; its kernel knows no bias."""
    ow.require(bias is None or bias.shape == x.shape, "bias must have the shape of x")
    return x * 2 if bias is None else x * 2 + bias


_each: ow.Op[..., Any]
for _each in (batched_wrong, leading_wrong, fake_shape, kernel_shape, compiled_otherwise, reads_a_value, graph_lost):
    _each.samples(matrices)
unmarked_.samples(matrices)
for _each in (batched_wrong, leading_wrong, fake_shape, reads_a_value, graph_lost):
    _each.kernel("cpu", ANY)(_each.reference)
compiled_otherwise.kernel("cpu", ANY)(torch.nn.functional.gelu)


@kernel_shape.kernel("cpu", ANY)
def _(x: Tensor) -> Tensor:
    return x.sum(-1, keepdim=True)


@unmarked_.kernel("cpu", ANY)
def _(x: Tensor) -> None:
    x.data.mul_(2)


@dtype_changed.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 4)


@dtype_changed.kernel("cpu", ANY)
def _(x: Tensor) -> Tensor:
    return x.float() + 1


@autocast_dtype.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(3, 4), make(4, 2)


@autocast_dtype.kernel("cpu", ANY)
def _(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


@list_short.samples
def _(make: ow.Maker) -> Iterator[Any]:
    for n in (1, 2, 3):
        yield ([make(4) for _ in range(n)],)


@list_short.kernel("cpu", ANY)
def _(xs: list[Tensor]) -> Tensor:
    return torch.stack(xs[:-1] if len(xs) > 2 else xs).sum(0)


@option_ignored.samples
def _(make: ow.Maker) -> Iterator[Any]:
    yield make(4)
    yield make(4), make(4)


@option_ignored.kernel("cpu", ANY)
def _(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return x * 2


def _batched(x: Tensor) -> Tensor:
    whole = torch._C._functorch.get_unwrapped(x) if torch._C._functorch.is_batchedtensor(x) else x
    return x - whole.mean()


def _in_float(x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return x @ y


def _fake(x: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], 1))


def _without_graph(x: Tensor) -> Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        return x * 3


def _unmarked(x: Tensor) -> None:
    x.data.mul_(2)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch warns of what is done here, once a process
    BY_HAND.impl("batched_wrong", _batched, "FuncTorchDynamicLayerFrontMode", allow_override=True)
    BY_HAND.impl("autocast_dtype", _in_float, "AutocastCPU", allow_override=True)
    BY_HAND.impl("unmarked_", _unmarked, "AutogradCPU", allow_override=True)
    BY_HAND.impl("graph_lost", _without_graph, "Autograd", allow_override=True)
    torch.library.register_fake("broken::fake_shape", _fake, lib=BY_HAND, allow_override=True)
