"""Clocks."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from opwright.kit.bench.timers import CudaClock, HostClock, Readings, clock_for, in_turns


def test_calls_are_read_in_turns_and_as_often() -> None:
    order: list[str] = []

    class Noted:
        def warm(self, call: Any) -> None:
            call()

        def read(self, call: Any, into: Readings) -> None:
            call()
            into.device.append(1.0)

    found = in_turns([lambda: order.append("a"), lambda: order.append("b")], Noted(), seconds=0.001, least=20, most=20)
    assert [len(r.device) for r in found] == [20, 20]
    rounds = [tuple(order[i : i + 2]) for i in range(2, len(order), 2)]
    assert {tuple(sorted(r)) for r in rounds} == {("a", "b")}
    assert len(set(rounds)) == 2


def test_the_host_clock_reads_what_a_call_takes() -> None:
    (found,) = in_turns([lambda: time.sleep(0.002)], HostClock(), seconds=0.01, least=5)
    assert 0.002 <= min(found.device) < 0.02
    assert found.host == []


def test_short_calls_are_repeated_within_a_reading() -> None:
    clock = HostClock()

    def call() -> None:
        return None

    clock.warm(call)
    assert clock.loops[call] > 100


def test_slow_calls_end_before_patience_does() -> None:
    start = time.perf_counter()
    (found,) = in_turns([lambda: time.sleep(0.02)], HostClock(), seconds=0.005, least=100)
    assert 5 <= len(found.device) < 20
    assert time.perf_counter() - start < 5


def test_the_cuda_clock_flushes_holds_and_reads_the_events_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            done.append("event")

        def elapsed_time(self, other: object) -> float:
            return 10.0  # milliseconds

    class About:
        L2_cache_size = 50

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: About)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append("wait"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: done.append("hold"))
    clock = CudaClock(torch.device("cpu"))
    assert clock.flush.numel() == 100
    assert clock.cycles == 2e9
    into = Readings()

    def call() -> None:
        done.append("call")

    clock.warm(call)
    monkeypatch.setattr(clock.flush.__class__, "zero_", lambda self: done.append("flush"))
    done.clear()
    clock.read(call, into)
    assert done == ["flush", "hold", "event", "call", "event", "wait"]
    assert into.device == [0.01]
    assert 0 < into.host[0] < 0.01


def test_other_devices_have_no_clock() -> None:
    with pytest.raises(ValueError, match="the device must be cpu or cuda, got meta"):
        clock_for(torch.device("meta"))
