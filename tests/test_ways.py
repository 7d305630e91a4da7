"""Every operator of the library, through every door, in every way of using it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from tests.calling import WAYS, Case, Function, Way
from tests.casts import declared_autocast, uncast
from tests.library import DOORS, FORMS, FUNCTIONAL, LONG, RUNGS
from tests.losses import Losses
from tests.ways import COMPILERS, SLOW, TWICE

DTYPES = (torch.float64, torch.float32, torch.complex128, torch.int64)
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
LOOPS = {"lltm", "lltm_cell"}
"""Operators whose references take long to compile."""
SECOND = {"cube", "linear"}
"""Operators whose second derivatives are tried in every way."""
PLAIN = {"call", "gradients", "forward mode", "fake tensors"}
VALUES = {"call", "no_grad and inference_mode", "fake tensors", "meta device", "func.vmap"}


def implemented(plain: Function, given: list[Tensor]) -> bool:
    """Whether PyTorch itself computes this: a GPU multiplies no matrices of integers."""
    try:
        plain(*given)
    except NotImplementedError:
        return False
    return True


def fails_alone(way: Way, plain: Function, given: list[Tensor]) -> str | None:
    """Why a way of use raises for the plain function too, as third derivatives of a strided convolution do."""
    try:
        way(plain, plain, given)
    except AssertionError:
        return None
    except Exception as e:
        return f"{type(e).__name__}: {str(e).strip().splitlines()[0][:100]}"
    return None


def cases() -> Iterator[Any]:
    for op in (*FUNCTIONAL, *FORMS, *RUNGS):
        for device, door, name in product(DEVICES, DOORS, WAYS):
            if name.startswith("autocast, ") and op.parent is not None:
                continue  # a gradient is compiled together with its operator
            marks = [pytest.mark.slow] if is_slow(op, door, name) else []
            yield pytest.param(op, device, door, name, id=f"{op.name}-{device}-{door}-{name}", marks=marks)


def is_slow(op: ow.Op[..., Any], door: str, name: str) -> bool:
    """Whether it is left to `test-all`. Before that a rung or a form is compiled through one door only, the rung of
    an operator of many tensors spared what goes over pairs of them, and one that runs as its reference the rest. Second
    derivatives are asked of some."""
    if name in COMPILERS and op.home.name in LOOPS and (op.home is not op or door == "opaque"):
        return True
    if name == "func.grad of one" and (door != "python" or op.parent is not None):
        return True
    if op.home.name in LONG:
        return op.home is not op or door != "python" or name not in PLAIN
    if op.home is op:
        return name in SLOW
    if op.parent is not None and op.parent.parent is not None and op.home.name not in SECOND:
        return True
    if door == "python" and not op.opaque and name not in VALUES:
        return True
    broad = op.parent is not None and len(op.signature.differentiable_inputs) > 6
    return name in SLOW or (name in COMPILERS and (broad or door != "opaque")) or (name in TWICE and broad)


@pytest.mark.parametrize(("op", "device", "door", "name"), [*cases()])
def test_operator_is_its_reference(op: ow.Op[..., Any], device: str, door: str, name: str) -> None:
    if name in COMPILERS and op.rung is not None and op.rung.extras is not None:
        pytest.skip("a gradient that takes extra results is compiled together with its operator")
    if name == "func.vmap" and op.home.name in LONG - {"conv_bn"}:
        pytest.skip("it would be called with the indices of a graph turned round, which are none; tests/graphs has it")
    # A gradient that takes extra results is differentiated as a function of the inputs; its values are the formula's.
    function = op.reference if name in VALUES else op.truth
    ran = 0
    for dtype in DTYPES[:1] if name in COMPILERS else DTYPES:
        samples = op.draw_samples(ow.Maker(dtype, device))
        for sample in samples[::3] if name in COMPILERS else samples:
            case = Case(sample)
            plain = case.over(function)
            if not implemented(plain, case.tensors):
                continue
            way = WAYS[name]
            if name == "autocast" and op.home.autocast is not None and (door != "python" or op.opaque):
                way = declared_autocast if op.parent is None else uncast
            exact = door == "opaque" or not op.kernels
            # The gradient of conv_bn sums in another order than PyTorch's own, which cancels in float32.
            cancels = op.home.name == "conv_bn" and dtype == torch.float32 and name != "autocast"  # which has bfloat16
            losses = Losses(plain) if cancels else None
            if losses is not None:
                losses.measure(way, case.tensors)
            try:
                with losses or nullcontext():
                    way(case.over(DOORS[door](op), exact), plain, case.tensors)
            except AssertionError:
                raise
            except Exception:
                why = fails_alone(way, plain, case.tensors)
                if why is None:
                    raise
                pytest.skip(f"PyTorch itself cannot do this with the plain function: {why}")
            ran += 1
    assert ran
