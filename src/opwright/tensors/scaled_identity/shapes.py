"""Indexing: what comes out has no more elements than were asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opwright.tensors.fallback import guard
from opwright.tensors.scaled_identity.type import ScaledIdentity


@ScaledIdentity.implements(torch.Tensor.__getitem__)
def getitem(self: Any, key: Any) -> Any:
    if not isinstance(self, ScaledIdentity):
        return NotImplemented
    parts = key if isinstance(key, tuple) else (key,)
    if all(p is Ellipsis or (isinstance(p, slice) and p == slice(None)) for p in parts) and len(parts) <= 2:
        return self
    if len(parts) == 2 and all(isinstance(p, slice) for p in parts) and parts[0] == parts[1]:
        size = len(range(*parts[0].indices(self.n)))
        if size > 0:  # a principal submatrix
            return type(self)(size, self.value)
    # Rows and columns of the chosen elements. Expanding and slicing cost no memory, so a slice too large to hold
    # is noticed before anything is allocated.
    count = torch.arange(self.n, device=self.device)
    rows: Tensor = count.unsqueeze(1).expand(self.n, self.n)[key]
    columns: Tensor = count.expand(self.n, self.n)[key]
    guard(self, "torch.Tensor.__getitem__", tuple(rows.shape))
    return torch.where(rows == columns, self.value, self.value.new_zeros(()))
