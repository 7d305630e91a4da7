"""What needs a GPU. `make test-cuda` runs it from a plain source tree, with torch, numpy and pytest alone."""

from __future__ import annotations

import pytest
import torch

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
needs_two_gpus = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="there are fewer than two GPUs here, so none other than the current one"
)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
