"""What PyTorch is told of convolutions, in one number, so that one can be computed again as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d

_C = torch._C
_Switch = tuple[int, Callable[[], Any], Callable[[Any], None]]
_CUDNN: list[_Switch] = [
    (1, _C._get_cudnn_enabled, _C._set_cudnn_enabled),
    (2, _C._get_cudnn_benchmark, _C._set_cudnn_benchmark),
    (4, _C._get_cudnn_deterministic, _C._set_cudnn_deterministic),
]
_MKLDNN: list[_Switch] = [
    (16, _C._get_mkldnn_enabled, _C._set_mkldnn_enabled),
    (32, _C._get_mkldnn_deterministic, _C._set_mkldnn_deterministic),
]
_TF32, _ROUNDED = 8, {"tf32": 64, "bf16": 128}
APART = 257
"""Added where other kernels of the process wait for other processes: none may wait until the whole GPU is free, as a
launch whose blocks wait for each other does. Communication could not go on beside it."""
END = 2 * APART - 1
_switching = Lock()
"""PyTorch's settings are the process's: two threads that put them back must not meet."""


def now(cuda: bool) -> int:
    """The settings in force, of cuDNN or of oneDNN."""
    steady = _C._get_deterministic_algorithms()
    if cuda:
        found = 1 * _C._get_cudnn_enabled() + 2 * _C._get_cudnn_benchmark()
        found += 4 * (steady or _C._get_cudnn_deterministic())
        return found + _TF32 * (_C._get_fp32_precision_getter("cuda", "conv") == "tf32")
    found = 16 * _C._get_mkldnn_enabled() + 32 * (steady or _C._get_mkldnn_deterministic())
    return found + _ROUNDED.get(_C._get_fp32_precision_getter("mkldnn", "conv"), 0)


def of_convolutions(settings: int) -> int:
    """What of a number is about convolutions; -1: nothing."""
    return settings - APART if settings >= APART - 1 else settings


def in_company() -> bool:
    """Whether this process has others to talk to."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


@contextmanager
def under(settings: int, cuda: bool) -> Iterator[None]:
    """Let convolutions be computed under settings of before; -1: under those in force."""
    if settings < 0 or settings == now(cuda):
        yield
        return
    library = "cuda" if cuda else "mkldnn"
    rounded = "tf32" if settings & _TF32 else "ieee"
    if not cuda:
        rounded = next((name for name, bit in _ROUNDED.items() if settings & bit), "ieee")
    switches = _CUDNN if cuda else _MKLDNN
    with _switching:
        before = [get() for _, get, _ in switches]
        precision = _C._get_fp32_precision_getter(library, "conv")
        try:
            for bit, _, put in switches:
                put(bool(settings & bit))
            _C._set_fp32_precision_setter(library, "conv", rounded)
            yield
        finally:
            for (_, _, put), value in zip(switches, before, strict=True):
                put(value)
            _C._set_fp32_precision_setter(library, "conv", precision)


def convolve(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    settings: int = -1,
) -> Tensor:
    """A convolution without a bias, under settings of before where they are given."""
    settings = of_convolutions(settings)
    if settings < 0:
        return conv2d(x, weight, None, list(stride), list(padding), list(dilation), groups)
    with under(settings, x.is_cuda):
        return conv2d(x, weight, None, list(stride), list(padding), list(dilation), groups)


# The kernel on the CPU calls it by this name.
_library = torch.library.Library("opwright_conv_bn", "FRAGMENT")
_library.define(
    "convolve(Tensor x, Tensor weight, int[] stride, int[] padding, int[] dilation, int groups, int settings) -> Tensor"
)
_library.impl("convolve", convolve, "CompositeExplicitAutograd")
