"""Large results on the CPU lie in large pages, where Linux lends them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import opwright as ow

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def flags(address: int) -> list[str]:
    """What the kernel says of the stretch of memory around an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if found:
            inside = int(found[1], 16) <= address < int(found[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("the address belongs to nothing")


@pytest.mark.skipif(not SETTING.exists(), reason="this kernel has no large pages to lend")
def test_only_large_results_ask_for_large_pages() -> None:
    for elements, asks in ((1 << 24, True), (1 << 12, False)):
        x = torch.ones(elements)
        y = ow.axpby(x, x, a=2)
        assert ow.explain(ow.axpby, x, x).runs == "cpu.cpp"
        assert ("hg" in flags(y.data_ptr() + y.nbytes // 2)) == asks
        assert torch.equal(y, 3 * x)
