"""Every operator of the library, through every door, in every way of using it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from tests.library import DOORS, FORMS, FUNCTIONAL, RUNGS
from tests.ways import SLOW, WAYS, Case, Function, declared_autocast

DTYPES = (torch.float64, torch.float32, torch.complex128, torch.int64)
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
VALUES = {"call", "no_grad and inference_mode", "fake tensors", "meta device", "func.vmap"}
COMPILERS = {"aot_eager", "aot_eager, dynamic", "export", "make_fx", *SLOW}


def implemented(plain: Function, given: list[Tensor]) -> bool:
    """Whether PyTorch itself computes this: a GPU multiplies no matrices of integers."""
    try:
        plain(*given)
    except NotImplementedError:
        return False
    return True


@pytest.mark.parametrize("name", [pytest.param(w, marks=[pytest.mark.slow] if w in SLOW else []) for w in WAYS])
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", [*FUNCTIONAL, *FORMS, *RUNGS], ids=lambda op: op.name)
def test_operator_is_its_reference(op: ow.Op[..., Any], device: str, door: str, name: str) -> None:
    if name in COMPILERS and op.rung is not None and op.rung.extras is not None:
        pytest.skip("a gradient that takes extra results is compiled together with its operator")
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
            declared = name == "autocast" and op.home.autocast is not None
            exact = door == "opaque" or not op.kernels
            (declared_autocast if declared else WAYS[name])(case.over(DOORS[door](op), exact), plain, case.tensors)
            ran += 1
    assert ran
