"""LLTM step by step, where its weights do not fit on chip: many steps are replayed as a graph, a few are not."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from tests.cuda import FLOATS, needs_gpu
from tests.cuda.test_persistent import drawn, error, lengths_of, run

pytestmark = needs_gpu
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
STEPS = 131  # one by itself, eight times sixteen, two more


@pytest.fixture(autouse=True)
def looped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWRIGHT_LLTM", "looped")


def small(dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """A layer that forgets fast enough for roundings not to grow."""
    x, weight_ih, weight_hh, *rest = drawn(STEPS, 3, 4, 10, dtype, seed)
    return [x, weight_ih, weight_hh * 0.3, *rest]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_many_steps_are_right(dtype: torch.dtype) -> None:
    args, lengths = small(dtype), lengths_of(STEPS, 3)
    lengths[1] = STEPS - 1
    cases: tuple[dict[str, Any], ...] = (
        {},
        {"lengths": lengths, "reverse": True, "all_cells": True},
        {"lengths": lengths, "recompute": True},
    )
    for more in cases:
        want = run(ow.lltm.reference, [a.double() for a in args], **more)
        got = run(ow.lltm, args, **more)
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            assert error(a, b) < TOLERANCE[dtype], f"{more}: result {i} is off by {error(a, b):.2g}"
        assert all(torch.equal(a, b) for a, b in zip(got, run(ow.lltm, args, **more), strict=True))


def test_within_a_graph_and_on_another_stream_the_same_comes_out() -> None:
    args = small(torch.float32)
    with torch.no_grad():
        expected = ow.lltm(*args).output
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            beside = ow.lltm(*args).output
        side.synchronize()
        assert torch.equal(beside, expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = ow.lltm(*args).output
        captured.zero_()
        graph.replay()
    assert torch.equal(captured, expected)


def test_memory_of_one_call_is_not_read_by_the_next() -> None:
    """A graph that knew the addresses of an earlier call would write there."""
    first, second = small(torch.float32), small(torch.float32, seed=1)
    expected = [run(ow.lltm, args) for args in (first, second)]
    torch.cuda.empty_cache()
    for _ in range(3):
        spoiled = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(4)]
        del spoiled
        for args, want in zip((first, second), expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(run(ow.lltm, args), want, strict=True))


def test_threads_replay_graphs_of_their_own() -> None:
    sets = [small(torch.float32, seed) for seed in range(4)]
    alone = [run(ow.lltm, args) for args in sets]
    torch.cuda.synchronize()
    wrong: list[str] = []

    def work(which: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for turn in range(4):
                    again = run(ow.lltm, sets[which])
                    torch.cuda.current_stream().synchronize()
                    if not all(torch.equal(a, b) for a, b in zip(alone[which], again, strict=True)):
                        wrong.append(f"{which} differs in turn {turn}")
        except Exception as e:
            wrong.append(f"{which}: {e}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(sets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


REPLAYED = """
import torch, opwright as ow
from torch.profiler import ProfilerActivity, profile
from tests.cuda import test_looped as t
args = [a.requires_grad_() for a in t.small(torch.float64)]
for backward in (False, True):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as said:
        out = ow.lltm(*args).output if not backward else torch.autograd.grad(out.sum(), args)
        torch.cuda.synchronize()
    print("REPLAYED", sum(e.count for e in said.key_averages() if e.key == "cudaGraphLaunch"))
"""


def test_the_first_backward_of_a_process_is_replayed_too() -> None:
    """What PyTorch makes for a first product must not fall into the capture, which would be given up without a word."""
    done = subprocess.run([sys.executable, "-c", REPLAYED], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("REPLAYED")] == ["REPLAYED 8"] * 2
