"""What all callers in a process share, and a call must leave as it found it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from opwright.kit.check import guard


def look() -> dict[str, object]:
    """What is shared, as it is now, in words."""
    found = guard.on_cpu()
    mode = None if isinstance(found, str) else found.library.opwright_guard_float_mode()
    return {
        "the state of the random number generator": torch.default_generator.get_state().tolist(),
        "the processor's way of rounding": mode,
        "PyTorch's number of threads": torch.get_num_threads(),
        "the default dtype": torch.get_default_dtype(),
        "whether gradients are recorded": torch.is_grad_enabled(),
        "whether deterministic algorithms are asked for": torch.are_deterministic_algorithms_enabled(),
    }


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Things are as usual, whatever earlier calls left: what they changed, the next would not change again."""
    found, dtype, threads = guard.on_cpu(), torch.get_default_dtype(), torch.get_num_threads()
    if not isinstance(found, str):
        found.library.opwright_guard_usual_float_mode()
    torch.default_generator.seed()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)


def changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """What is not as it was."""
    return [what for what, value in before.items() if after[what] != value]
