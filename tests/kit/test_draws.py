"""Random numbers that a reference draws with generators other than PyTorch's own."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import opwright as ow

OWN: dict[str, Any] = {"python": random.Random(1), "torch": torch.Generator()}
RNG = np.random.default_rng(2)
DRAWS: dict[str, Callable[[], float]] = {
    "python": lambda: random.random(),
    "gauss": lambda: random.gauss(0, 1),
    "own": lambda: OWN["python"].random(),
    "numpy": lambda: float(np.random.rand()),
    "rng": lambda: float(RNG.random()),
    "in_a_dict": lambda: float(torch.rand((), generator=OWN["torch"])),
}


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("opaque", [False, True])
def test_draws_from_other_generators_are_refused(kind: str, opaque: bool) -> None:
    draw = DRAWS[kind]

    def drop(x: Tensor) -> Tensor:
        return x * draw()

    op = ow.op(name=f"draws_{kind}_{opaque}", opaque=opaque)(drop)
    with pytest.raises(ow.BadReference, match=r"the reference draws random numbers \(.*random=True"):
        op(torch.ones(2))
    declared = ow.op(name=f"draws_{kind}_{opaque}_declared", opaque=opaque, random=True)(drop)
    declared(torch.ones(2))


def test_the_draws_of_another_thread_are_its_own() -> None:
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            random.random()

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    try:
        for i in range(20):

            @ow.op(name=f"draws_not_{i}", opaque=True)
            def product(x: Tensor) -> Tensor:
                return x @ x

            product(torch.ones(50, 50))
    finally:
        stop.set()
        thread.join()
