"""PyTorch's OpInfo database: its names, and few but varied samples of each operator.

Imported by worker processes alone: PyTorch's test modules set flags for the whole process.
"""

from __future__ import annotations

import sys
import types
import unittest
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

LARGE = 20_000
"""Elements beyond which a sample is left alone while there are smaller ones."""


def load() -> dict[str, Any]:
    """Every OpInfo by its name; one of several variants is called `name:variant`."""
    if "expecttest" not in sys.modules:
        try:
            import expecttest  # type: ignore[import-not-found]  # noqa: F401
        except ModuleNotFoundError:  # all that PyTorch's test modules take from it is a base class
            stand_in: Any = types.ModuleType("expecttest")
            stand_in.TestCase = unittest.TestCase
            sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    for module in [m for name, m in sys.modules.items() if name.startswith("torch.testing._internal")]:
        if hasattr(module, "wrapper_set_seed"):  # it hides that a function draws random numbers; we seed ourselves
            module.wrapper_set_seed = _unseeded  # type: ignore[attr-defined]
    return {f"{info.name}:{info.variant_test_name}" if info.variant_test_name else info.name: info for info in op_db}


def _unseeded(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def dtypes(info: Any, device: str) -> list[torch.dtype]:
    """One real dtype and one complex; where there is neither, the first that there is."""
    supported = info.supported_dtypes(torch.device(device).type)
    real = [d for d in (torch.float64, torch.float32, torch.bfloat16) if d in supported]
    complexes = [d for d in (torch.complex128, torch.complex64) if d in supported]
    others = [d for d in (torch.int64, torch.int32, torch.bool) if d in supported]
    return real[:1] + complexes[:1] or others[:1] or sorted(supported, key=str)[:1]


def samples(info: Any, device: str, dtype: torch.dtype, count: int) -> list[tuple[Any, ...]]:
    """Up to `count` calls as (args, kwargs), each as different from those before it as can be."""
    torch.manual_seed(0)
    number = dtype.is_floating_point or dtype.is_complex
    found = []
    for sample in info.sample_inputs(device, dtype, requires_grad=number and info.supports_autograd):
        found.append(((sample.input, *sample.args), dict(sample.kwargs)))
        if number and not info.supports_autograd:  # PyTorch has no derivative: it must be missed, not made up
            for t in tree_leaves(found[-1]):
                if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex()):
                    t.requires_grad_()
        if len(found) == 200:
            break
    sizes = [[t.numel() for t in tree_leaves(call) if isinstance(t, Tensor)] for call in found]
    # An empty tensor says little about values, a large one takes long.
    telling = [c for c, n in zip(found, sizes, strict=True) if 0 not in n and sum(n) <= LARGE] or found
    chosen: list[tuple[Any, ...]] = []
    known: set[Any] = set()
    while telling and len(chosen) < count:
        new = [sum(worth for feature, worth in _features(call).items() if feature not in known) for call in telling]
        best = new.index(max(new))
        known |= _features(telling[best]).keys()
        chosen.append(telling.pop(best))
    return chosen


def _features(call: tuple[Any, ...]) -> dict[Any, int]:
    """What makes a call different from others, and how much: above all words and flags."""
    args, kwargs = call
    places = [*enumerate(args), *kwargs.items()]
    options = [(place, value) for place, value in places if isinstance(value, (bool, int, float, str, type(None)))]
    found: dict[Any, int] = {option: 3 if isinstance(option[1], (bool, str)) else 1 for option in options}
    found[tuple(options)] = 1
    found[tuple(str(place) for place, _ in places)] = 1
    found[tuple(value.dim() for _, value in places if isinstance(value, Tensor))] = 1
    for place, value in places:
        if isinstance(value, Tensor):
            dense = value.layout == torch.strided and value.is_contiguous()
            found[place, dense, value.requires_grad] = 1
    return found
