"""A gradient that a call may tell not to keep a tensor."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow

_numbers = itertools.count()
_found: list[tuple[bool, bool]] = []


def _op(kernel: bool) -> ow.Op[..., Any]:
    """max(x, 0) + y, whose gradient reads the result or y - x, as it was told."""

    @ow.op(name=f"ramp{next(_numbers)}", namespace="when", opaque=True)
    def ramp(x: Tensor, y: Tensor, keep_y: bool = True, keep_result: bool = False) -> Tensor:
        return torch.relu(x) + 0 * y

    @ramp.gradient(when={"y": "keep_y", "result": "keep_result"})
    def _(
        grad: Tensor, x: Tensor, y: Tensor, result: Tensor, keep_y: bool, keep_result: bool, wanted: list[bool]
    ) -> Any:
        _found.append((y is not None, result is not None))
        return grad * (result if keep_result else x).sign().relu(), 0 * grad if wanted[1] else None

    if kernel:
        ramp.kernel("cpu")(lambda x, y, keep_y, keep_result: torch.relu(x))
    return ramp


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("keep_y", [False, True])
@pytest.mark.parametrize("keep_result", [False, True])
def test_a_call_keeps_what_it_is_told_to(kernel: bool, keep_y: bool, keep_result: bool) -> None:
    op = _op(kernel)
    x, y = torch.tensor([-1.0, 2.0], requires_grad=True), torch.ones(2, requires_grad=True)
    kept: list[int] = []

    def keep(t: Tensor) -> Tensor:
        kept.append(t.data_ptr())
        return t

    out = op(x, y, keep_y, keep_result)  # the first call records in Python
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        out = op(x, y, keep_y, keep_result)
    assert (y.data_ptr() in kept, out.data_ptr() in kept) == (keep_y, keep_result)
    _found.clear()
    d_x, d_y = torch.autograd.grad(out.sum(), (x, y))
    assert _found == [(keep_y, keep_result)]
    assert d_x.tolist() == [0.0, 1.0]
    assert d_y.tolist() == [0.0, 0.0]  # a gradient is wanted of what was not kept, too


def test_a_compiled_call_keeps_what_it_is_told_to() -> None:
    op = _op(True)
    x, y = torch.tensor([-1.0, 2.0], requires_grad=True), torch.ones(2, requires_grad=True)
    compiled = torch.compile(lambda x, y: op(x, y, False, True), backend="aot_eager", fullgraph=True)
    d_x, d_y = torch.autograd.grad(compiled(x, y).sum(), (x, y))
    assert d_x.tolist() == [0.0, 1.0]
    assert d_y.tolist() == [0.0, 0.0]


def test_what_is_no_kept_tensor_or_no_flag_is_refused() -> None:
    op = _op(False)
    with pytest.raises(TypeError, match="when names 'z', which is no tensor that its gradient saves"):
        op.gradient(when={"z": "keep_y"})(lambda grad, x, keep_y: (grad, None))
    with pytest.raises(TypeError, match="when of 'x' must name a bool parameter of ramp"):
        op.gradient(when={"x": "y"})(lambda grad, x, y: (grad, None))
    with pytest.raises(TypeError, match="its gradient must take 'keep_y', which says whether 'x' was kept"):
        op.gradient(when={"x": "keep_y"})(lambda grad, x: (grad, None))
    with pytest.raises(TypeError, match="when must be a dict"):
        op.gradient(when=["x"])  # type: ignore[call-overload]
