"""Where tests need nvcc: whether opwright finds one."""

from __future__ import annotations

import pytest

from opwright.kit.build import cuda
from opwright.kit.build.trouble import Unavailable

try:
    FOUND: str | None = cuda.nvcc().command
except Unavailable:
    FOUND = None
needs_nvcc = pytest.mark.skipif(FOUND is None, reason="there is no nvcc here")
