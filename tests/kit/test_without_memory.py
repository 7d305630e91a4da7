"""A kernel that gets no memory: an error of PyTorch's own type, at once, and the next call is well."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.dispatch import native

KERNEL = """
#include <opwright/kernel.h>
Tensor starved_cpu(const Tensor& x) {
    check(x.numel() < 4, "starved: CUDA out of memory: GPU 0 has no room for a result of ", x.numel(), " elements");
    return map([](float v) { return 2 * v; }, x);
}
OPWRIGHT_KERNEL(starved, CPU, starved_cpu);
"""


@pytest.mark.parametrize("name", ["starved", "starved_in_python"])
def test_it_is_pytorchs_own_error_and_the_reference_is_not_asked(name: str) -> None:
    asked = []

    @ow.op(name=name)
    def op(x: Tensor) -> Tensor:
        asked.append(x)
        return 2 * x

    if name == "starved":
        op.kernel_source("cpu", KERNEL, ow.Domain(dtypes=(torch.float32,), layout="contiguous"))
    else:

        @op.kernel("cpu")
        def _(x: Tensor) -> Tensor:
            if x.numel() >= 4:
                raise RuntimeError("starved: CUDA out of memory: GPU 0 has no room")
            return 2 * x

    assert op(torch.ones(3)).tolist() == [2.0] * 3
    asked.clear()
    for x in (torch.ones(5), torch.ones(5, requires_grad=True)):
        with pytest.raises(torch.OutOfMemoryError, match=r"^starved: CUDA out of memory: GPU 0 has no room"):
            op(x)
    assert not asked
    assert op(torch.ones(3)).tolist() == [2.0] * 3


UNTOLD = """
#include <opwright/kernel.h>
Tensor untold_cpu(const Tensor& x) {
    check(x.numel() < 4, "aten::mm failed");
    return map([](float v) { return 2 * v; }, x);
}
OPWRIGHT_KERNEL(untold, CPU, untold_cpu);
"""


@pytest.mark.parametrize("name", ["untold", "untold_in_python"])
def test_what_a_kernel_is_not_told_the_reference_says(name: str) -> None:
    """Before torch 2.13 a kernel learns that an operator of PyTorch's raised, and not what."""

    @ow.op(name=name)
    def op(x: Tensor) -> Tensor:
        if x.numel() > 5 and type(x) is Tensor:  # as it meets real tensors alone
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return 2 * x

    if name == "untold":
        op.kernel_source("cpu", UNTOLD, ow.Domain(dtypes=(torch.float32,), layout="contiguous"))
    else:

        @op.kernel("cpu")
        def _(x: Tensor) -> Tensor:
            if x.numel() >= 4:
                raise RuntimeError("aten::mm failed")
            return 2 * x

    assert op(torch.ones(3)).tolist() == [2.0] * 3
    for x in (torch.ones(6), torch.ones(6, requires_grad=True)):
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            op(x)
    with pytest.raises(RuntimeError, match="aten::mm failed"):  # where it has nothing to say, the kernel still failed
        op(torch.ones(5))


LONG = """
import resource, time
import torch
import opwright as ow

weight_ih, weight_hh = torch.ones(192, 8), torch.ones(192, 64)
x = torch.ones(5, 4, 8)
expected = ow.lltm(x, weight_ih, weight_hh).output
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
begin = time.monotonic()
try:
    ow.lltm(x[:1, :1].expand(200_000, 5_000, 8), weight_ih, weight_hh)
except RuntimeError as e:
    print(e)
assert torch.equal(ow.lltm(x, weight_ih, weight_hh).output, expected)
print(time.monotonic() - begin)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are the system's")
@pytest.mark.skipif(native.available() is not None, reason="opwright's own C++ is not built")
def test_a_long_sequence_without_memory_is_an_error_at_once() -> None:
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    *said, seconds = done.stdout.splitlines()
    assert "is there memory for it?" in said[0]
    assert float(seconds) < 20, f"{seconds} s of {time.monotonic() - begin}"
