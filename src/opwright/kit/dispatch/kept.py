"""A copy of what is written later.

PyTorch's partitioner takes a clone for cheap: it saves the tensor and clones it again in the backward, after the write.
So the copy that a gradient reads is made, in graphs, by an operator that is computed once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("opwright_kept", "FRAGMENT")
_library.define("copy(Tensor x) -> Tensor")  # C++ calls it by this name
_library.impl("copy", Tensor.clone, "CompositeExplicitAutograd")


def _batched(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
    return torch.ops.opwright_kept.copy(x), in_dims[0]


torch.library.register_vmap("opwright_kept::copy", _batched, lib=_library)


def copy(value: Any) -> Any:
    """A copy of a tensor, or of each in a list, as it is now."""
    if isinstance(value, (list, tuple)):
        return [copy(t) for t in value]
    if value is None or not torch.compiler.is_compiling():
        return None if value is None else value.clone()
    return torch.ops.opwright_kept.copy(value.detach())
