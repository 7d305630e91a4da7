"""What a plain function loses in a dtype, which nobody who computes the same is asked to do without."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class Losses:
    """What a plain function loses in a dtype, result by result of a way of using it: measured against float64, then
    granted, some times over, to whoever sums in another order."""

    TIMES = 16.0  # one run may lose little by chance, and computing back from an output loses more
    now: Losses | None = None

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self.found: dict[tuple[str, int], float] = {}
        self.measuring = False
        self.function = function

    def exactly(self, *given: Tensor) -> tuple[Tensor, ...]:
        """The function in float64, rounded once."""
        wide = [t.double() if t.is_floating_point() else t for t in given]
        dtype = next(t.dtype for t in given if t.is_floating_point())
        return tuple(t.to(dtype) if t.is_floating_point() else t for t in self.function(*wide))

    def measure(self, way: Callable[..., None], given: list[Tensor]) -> None:
        self.measuring = True
        with self:
            way(self.exactly, self.function, given)
        self.measuring = False

    def note(self, what: str, i: int, difference: Tensor) -> None:
        most = difference.abs().nan_to_num().max().item() if difference.numel() else 0.0
        self.found[what, i] = max(most, self.found.get((what, i), 0.0))

    def __enter__(self) -> None:
        Losses.now = self

    def __exit__(self, *_: object) -> None:
        Losses.now = None
