"""What the machine can do at most: how fast it copies and multiplies, measured once and kept."""

from __future__ import annotations

import bisect
import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from opwright.kit.build import cache
from opwright.kit.build.trouble import Unavailable
from opwright.kit.spec.domain import Cost

FOOTPRINTS = tuple(1 << p for p in range(14, 29, 2))
"""Bytes that a copy reads and writes together. On the CPU small ones stay in its caches, as tensors do."""


class Limits:
    """A device's limits. `seconds` is the least time in which a cost can be paid."""

    def __init__(self, copy: list[tuple[int, float]], gemm: dict[str, float]) -> None:
        self.copy: list[tuple[int, float]] = []
        """Bytes moved, and bytes a second at which they were."""
        fastest = 0.0
        for moved, rate in sorted(copy, reverse=True):  # what a large copy reached a small one could have, less noise
            fastest = max(fastest, rate)
            self.copy.insert(0, (moved, fastest))
        self.gemm = gemm
        """Floating-point operations a second, by dtype."""

    def bandwidth(self, moved: int) -> float:
        """Bytes a second at which so many bytes can be copied.

        >>> round(Limits([(100, 4.0), (10000, 2.0)], {}).bandwidth(1000), 3)
        3.0
        """
        if not self.copy:
            return math.inf
        sizes = [size for size, _ in self.copy]
        place = bisect.bisect_left(sizes, moved)
        if place in (0, len(sizes)):
            return self.copy[min(place, len(sizes) - 1)][1]
        (low, slow), (high, fast) = self.copy[place - 1 : place + 1]
        share = (math.log(moved) - math.log(low)) / (math.log(high) - math.log(low))
        return slow + (fast - slow) * share

    def seconds(self, cost: Cost, dtype: str) -> float:
        """The roofline: bytes at the speed of a copy or operations at that of a GEMM, whichever takes longer."""
        by_flops = cost.flops / self.gemm[dtype] if self.gemm.get(dtype) else 0.0
        return max(cost.bytes / self.bandwidth(cost.bytes) if cost.bytes else 0.0, by_flops)

    def to_json(self) -> dict[str, Any]:
        """As results files hold it."""
        copy = [{"bytes": size, "bytes_per_s": float(f"{rate:.4g}")} for size, rate in self.copy]
        return {"copy": copy, "gemm_flops_per_s": {d: float(f"{rate:.4g}") for d, rate in self.gemm.items()}}

    @classmethod
    def read(cls, stored: dict[str, Any]) -> Limits:
        """From what `to_json` gave."""
        return cls([(c["bytes"], c["bytes_per_s"]) for c in stored["copy"]], dict(stored["gemm_flops_per_s"]))


def measure_copy(device: torch.device) -> list[tuple[int, float]]:
    """Bytes moved by a copy, and bytes a second, for footprints from cache to memory."""
    found = []
    # A CUDA call starts from a flushed cache, so there is one speed for it: that of the memory.
    for moved in (1 << 31,) if device.type == "cuda" else FOOTPRINTS:
        source = torch.zeros(moved // 8, dtype=torch.float32, device=device)
        target = torch.empty_like(source)
        found.append((moved, moved / _best(lambda t=target, s=source: t.copy_(s), device)))  # type: ignore[misc]
    return found


def measure_gemm(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second of PyTorch's own matrix product, with its settings as they are."""
    cuda = device.type == "cuda"
    side = 8192 if cuda and dtype != torch.float64 else 4096 if cuda else 768
    a, b = (torch.rand(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / _best(lambda: a @ b, device)


def _best(call: Callable[[], Any], device: torch.device) -> float:
    """The least seconds of a call: a limit is what was reached once. Short calls are repeated within a reading."""
    call()
    least, loops = math.inf, 1
    end = time.perf_counter() + 0.15
    rounds = 0
    while time.perf_counter() < end or rounds < 10:
        rounds += 1
        if device.type == "cuda":
            begin, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            done.record()
            torch.cuda.synchronize(device)
            least = min(least, begin.elapsed_time(done) * 1e-3)
            continue
        start = time.perf_counter()
        for _ in range(loops):
            call()
        took = (time.perf_counter() - start) / loops
        least = min(least, took)
        loops = max(1, int(100e-6 / max(took, 1e-7)))
    return least


def limits(key: str, dtypes: tuple[str, ...], ask: Callable[[str], Any], *, again: bool = False) -> Limits:
    """The limits of the device called `key`, for these dtypes. What is not in the user's cache yet is asked for:
    `ask("copy")`, `ask("float32")`, …; an answer of None (the product crashed, or there is none) is kept too."""
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, Unavailable):
        read = json.loads((cache.folder() / "limits.json").read_bytes())
        known = read if isinstance(read, dict) else {}
    mine: dict[str, Any] = {} if again or not isinstance(known.get(key), dict) else dict(known[key])
    missing = [what for what in ("copy", *dtypes) if what not in mine]
    for what in missing:
        mine[what] = ask(what)
    if missing:
        with contextlib.suppress(OSError, Unavailable):  # where they cannot be kept, they are measured each time
            folder = cache.folder()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # libraries are loaded from there
            write(folder / "limits.json", json.dumps({**known, key: mine}, indent=1) + "\n")
    copy = [(int(size), float(rate)) for size, rate in mine["copy"] or ()]
    return Limits(copy, {d: float(mine[d]) for d in dtypes if mine[d]})


def write(file: Path, text: str) -> None:
    """Write a file whole or not at all: a reader, or a Ctrl-C, never meets half of one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(name, 0o644)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
