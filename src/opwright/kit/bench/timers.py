"""Clocks: how long a call takes on the device, and how long it keeps the host."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from opwright.kit import private

READING = 250e-6
"""Seconds that one reading of the host's clock lasts at least; short calls are repeated within it."""

Call = Callable[[], Any]


@dataclass
class Readings:
    """Seconds a call, one reading a round, in the order of the rounds."""

    device: list[float] = field(default_factory=list)
    """On the device; on the CPU, all of the call."""
    host: list[float] = field(default_factory=list)
    """Until the call returned to its caller, the device still at work. Empty on the CPU, which has no such moment."""


class Clock(Protocol):
    """Takes readings of one device."""

    def warm(self, call: Call) -> None:
        """Bring caches, allocators and clocks to where they will stay."""

    def read(self, call: Call, into: Readings) -> None:
        """Take one reading."""


class HostClock:
    """For the CPU. Inputs stay as warm in its caches as a loop leaves them, and so does the machine's limit."""

    def __init__(self) -> None:
        self.loops: dict[Call, int] = {}

    def warm(self, call: Call) -> None:
        """Call until 20 ms have passed, three times at least, and note how many calls make a reading."""
        end = time.perf_counter() + 0.02
        took: list[float] = []
        while len(took) < 3 or (time.perf_counter() < end and len(took) < 1000):
            start = time.perf_counter()
            call()
            took.append(time.perf_counter() - start)
        self.loops[call] = max(1, round(READING / max(sorted(took)[len(took) // 2], 1e-7)))

    def read(self, call: Call, into: Readings) -> None:
        """Time a few calls as one."""
        loops = range(self.loops[call])
        start = time.perf_counter()
        for _ in loops:
            call()
        into.device.append((time.perf_counter() - start) / len(loops))


class CudaClock:
    """For CUDA: events around a call that finds the L2 cache flushed.

    A kernel that spins holds the stream back until the host has enqueued the whole call, so that the events see the
    device alone; the time to enqueue is read from the host's clock meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        about = torch.cuda.get_device_properties(device)
        self.device = device
        size = 2 * int(getattr(about, "L2_cache_size", 0) or 64 << 20)
        self.flush = torch.empty(size, dtype=torch.int8, device=device)
        self.hold: dict[Call, int] = {}
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.cycles = self._cycles_a_second()

    def _cycles_a_second(self) -> float:
        """How fast the spinning kernel counts on this device at its present clock."""
        cycles = 20_000_000
        for _ in range(2):  # the first brings the device's clock up
            self.begin.record()
            private.gpu_sleep(cycles)
            self.end.record()
            torch.cuda.synchronize(self.device)
        return float(cycles / (self.begin.elapsed_time(self.end) * 1e-3))

    def warm(self, call: Call) -> None:
        """Call a few times, and note how long the stream must be held."""
        took: list[float] = []
        end = time.perf_counter() + 0.05
        while len(took) < 5 or (time.perf_counter() < end and len(took) < 1000):
            torch.cuda.synchronize(self.device)
            start = time.perf_counter()
            call()
            took.append(time.perf_counter() - start)
        torch.cuda.synchronize(self.device)
        host = sorted(took)[int(0.8 * (len(took) - 1))]
        # A call that waits for the device itself cannot be enqueued ahead of it: holding longer would not help.
        self.hold[call] = int(min(2 * host + 20e-6, 20e-3) * self.cycles)

    def read(self, call: Call, into: Readings) -> None:
        """Time one call."""
        self.flush.zero_()
        private.gpu_sleep(self.hold[call])
        self.begin.record()
        start = time.perf_counter()
        call()
        into.host.append(time.perf_counter() - start)
        self.end.record()
        torch.cuda.synchronize(self.device)
        into.device.append(self.begin.elapsed_time(self.end) * 1e-3)


def clock_for(device: torch.device) -> Clock:
    """The clock of a device."""
    if device.type == "cuda":
        return CudaClock(device)
    if device.type == "cpu":
        return HostClock()
    raise ValueError(f"bench: the device must be cpu or cuda, got {device}")


def in_turns(
    calls: Sequence[Call], clock: Clock, *, seconds: float, least: int = 15, most: int = 400,
    renew: Callable[[], None] = lambda: None,
) -> list[Readings]:  # fmt: skip
    """Readings of each call, taken in turns and in a new order each round, so that a noisy machine hurts all alike;
    `renew` changes their inputs before each."""
    for call in calls:
        clock.warm(call)
    found = [Readings() for _ in calls]
    order = list(range(len(calls)))
    shuffle = random.Random(0).shuffle
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        for done in range(most):
            # However slow the calls, a median needs some rounds; ten times the asked-for time is enough patience.
            spent = time.perf_counter() - start
            if (done >= least and spent > seconds) or (done >= 5 and spent > 10 * seconds):
                break
            shuffle(order)
            for i in order:
                renew()
                clock.read(calls[i], found[i])
    finally:
        if collecting:
            gc.enable()
    return found
