"""What conv_bn computes again it computes under the settings of the forward, whatever they are by then."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.ops.conv_bn import settings


@contextmanager
def onednn(enabled: bool) -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def of_gamma(call: Callable[[Tensor], Tensor], gamma: Tensor, forward: bool, backward: bool) -> Tensor:
    """The gradient of γ, which reads the convolution that is computed again and no other."""
    x = torch.randn(4, 16, 12, 12, generator=torch.Generator().manual_seed(0))
    with onednn(forward):
        out = call(x)
    with onednn(backward):
        return torch.autograd.grad((out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum(), gamma)[0]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN to switch off")
@pytest.mark.parametrize("first", [False, True])
def test_the_convolution_is_computed_again_as_it_was(first: bool) -> None:
    torch.manual_seed(0)
    layer = ow.nn.ConvBN2d(16, 8, 3, padding=1, activation="relu")
    gamma = layer.bn.weight
    assert torch.equal(of_gamma(layer, gamma, first, not first), of_gamma(layer, gamma, first, first))
    plainly = [of_gamma(layer, gamma, on, on) for on in (False, True)]
    assert not torch.equal(*plainly)  # else this says nothing


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN to switch off")
def test_the_formula_does_so_too() -> None:
    x, weight = torch.randn(2, 16, 9, 9), torch.randn(8, 16, 3, 3)
    shape: Any = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    again: Any = functools.partial(settings.convolve, x, weight, **shape)
    found = {}
    for on in (False, True):
        with onednn(on):
            found[on] = again(), settings.now(cuda=False)
    for on in (False, True):
        with onednn(not on):
            assert torch.equal(again(settings=found[on][1]), found[on][0])
            assert torch._C._get_mkldnn_enabled() is not on
    assert not torch.equal(found[True][0], found[False][0])


@pytest.mark.parametrize("cuda", [False, True])
def test_every_setting_has_its_place_in_the_number_and_is_put_back(cuda: bool) -> None:
    """Of a GPU too, where there is none: they are PyTorch's state, not the device's."""
    library = "cuda" if cuda else "mkldnn"
    switches = settings._CUDNN if cuda else settings._MKLDNN
    usual = settings.now(cuda)
    precision = torch._C._get_fp32_precision_getter(library, "conv")
    changed = [usual ^ bit for bit, _, _ in switches]
    changed += [usual ^ 8] if cuda else [usual & ~192 | bit for bit in (64, 128)]
    for number in changed:
        with settings.under(number, cuda):
            assert settings.now(cuda) == number
        assert settings.now(cuda) == usual
        assert torch._C._get_fp32_precision_getter(library, "conv") == precision


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler")
@pytest.mark.parametrize("cuda", [False, True])
def test_kernels_read_the_number_that_python_notes(cuda: bool, tmp_path: Path) -> None:
    """Both devices' kernels look it up in PyTorch's state, and compute again without boxes where it is the same."""
    code = '#include "in_force.h"\nextern "C" long asked() { return conv_bn::settings_in_force(); }\n'
    (tmp_path / "asked.cpp").write_text(code, encoding="utf-8")
    command = ["c++", "-std=c++17", "-shared", "-fPIC", f"-I{Path(settings.__file__).parent}", "asked.cpp"]
    command += ["-o", "it.so", *(["-DOPWRIGHT_CUDA"] if cuda else [])]
    # As kernels are linked: what they look up is in the libraries that they name.
    command += [f"-L{Path(torch.__file__).parent / 'lib'}", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10"]
    subprocess.run(command, cwd=tmp_path, check=True)
    asked = ctypes.CDLL(str(tmp_path / "it.so")).asked
    asked.restype = ctypes.c_long
    usual = settings.now(cuda)
    bits = (1, 2, 4, 8) if cuda else (16, 32)
    for number in (usual, *(usual ^ bit for bit in bits), *(() if cuda else (usual & ~192 | 64, usual & ~192 | 128))):
        with settings.under(number, cuda):
            assert asked() == settings.now(cuda) == number


def test_deterministic_algorithms_are_a_setting_of_convolutions() -> None:
    for cuda in (False, True):
        usual = settings.now(cuda)
        torch.use_deterministic_algorithms(True)
        try:
            assert settings.now(cuda) == usual | (4 if cuda else 32)
        finally:
            torch.use_deterministic_algorithms(False)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN to switch off")
def test_settings_in_force_cost_no_way_through_python() -> None:
    layer = ow.nn.ConvBN2d(4, 4, 1)
    for on, asked in ((True, False), (False, True)):
        out = layer(torch.randn(2, 4, 5, 5))
        with onednn(on), torch.autograd.profiler.profile() as seen:
            out.sum().backward()
        assert ("opwright_conv_bn::convolve" in {e.name for e in seen.function_events}) is asked


def test_settings_that_are_none_are_refused() -> None:
    x, weight = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 1, 1)
    with pytest.raises(ValueError, match="conv_bn: settings must be those of"):
        ow.conv_bn(x, weight, settings=513)
