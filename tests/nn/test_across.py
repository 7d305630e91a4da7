"""Statistics across processes are those of the whole batch."""

from __future__ import annotations

import copy
import ctypes
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

import opwright as ow
from tests.kit.distributed.ranks import leave

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
SIZES = {2: [3, 1], 3: [2, 0, 3]}
"""Images of each rank: uneven, and none."""


def work(rank: int, ranks: int, folder: str, compiled: bool) -> None:
    """What one process does: its part of the batch with the others, against the whole batch alone."""
    from torch import distributed

    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", ranks)  # type: ignore[no-untyped-call, attr-defined]
    distributed.init_process_group("gloo", rank=rank, world_size=ranks, store=store)
    torch.manual_seed(0)
    sizes = SIZES[ranks]
    whole, grad = (torch.randn(sum(sizes), n, 5, 5, dtype=torch.float64) for n in (3, 4))
    for keep in ("input", "all"):
        alone = ow.nn.ConvBN2d(3, 4, 3, padding=1, activation="silu", keep=keep, dtype=torch.float64)  # type: ignore[arg-type]
        layer = copy.deepcopy(alone)
        layer.process_group = distributed.group.WORLD
        shared: Any = layer if keep == "input" else ow.nn.synchronise(nn.Sequential(copy.deepcopy(alone)))
        call = torch.compile(shared, backend="aot_eager", fullgraph=True) if compiled else shared
        mine = whole.split(sizes)[rank].clone().requires_grad_()
        every = whole.clone().requires_grad_()
        for _ in range(2):
            out, expected = call(mine), alone(every)
            out.backward(grad.split(sizes)[rank])
            expected.backward(grad)
        for p in shared.parameters():
            distributed.all_reduce(p.grad)
        pairs = [
            (out, expected.split(sizes)[rank]),
            (mine.grad, every.grad.split(sizes)[rank]),  # type: ignore[union-attr, no-untyped-call]
            *((a.grad, b.grad) for a, b in zip(shared.parameters(), alone.parameters(), strict=True)),
            *zip(shared.buffers(), alone.buffers(), strict=True),
        ]
        for a, b in pairs:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    Path(folder, f"done{rank}").touch()
    leave()


def run(ranks: int, folder: Path, compiled: bool = False) -> None:
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        mp.spawn(work, (ranks, str(folder), compiled), ranks)  # type: ignore[no-untyped-call, attr-defined]
    finally:
        os.environ.pop("OMP_NUM_THREADS") if before is None else os.environ.update(OMP_NUM_THREADS=before)
    assert len(list(folder.glob("done*"))) == ranks


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_share_statistics(tmp_path: Path, compiled: bool) -> None:
    run(2, tmp_path, compiled)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_three_processes_of_which_one_has_nothing_share_statistics(tmp_path: Path, compiled: bool) -> None:
    run(3, tmp_path, compiled)


def grow(rank: int, folder: str) -> None:
    """Train often in a group of one, and note what stays allocated of each step."""
    from torch import distributed

    class Held(ctypes.Structure):  # what malloc has handed out is the eighth
        _fields_ = [(f"size{i}", ctypes.c_size_t) for i in range(10)]

    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = Held
    store = distributed.FileStore(f"{folder}/store", 1)  # type: ignore[no-untyped-call, attr-defined]
    distributed.init_process_group("gloo", rank=rank, world_size=1, store=store)
    x = torch.randn(2, 2, 3, 3, requires_grad=True)
    layer = ow.nn.ConvBN2d(2, 2, 1, process_group=distributed.group.WORLD)
    held = []
    for _ in range(3):
        held.append(ask().size7)
        for _ in range(1500):
            torch.autograd.grad(layer(x).sum(), x)
    Path(folder, "grown").write_text(str((held[-1] - held[-2]) / 1500), encoding="utf-8")
    leave()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="this C library does not tell what it holds")
def test_a_group_costs_no_memory_that_stays(tmp_path: Path) -> None:
    mp.spawn(grow, (str(tmp_path),), 1)  # type: ignore[no-untyped-call, attr-defined]
    assert float((tmp_path / "grown").read_text(encoding="utf-8")) < 24  # bytes a step; a text is 32, and there are two


def test_without_a_group_there_is_nobody_to_share_with() -> None:
    model = ow.nn.synchronise(nn.Sequential(ow.nn.ConvBN2d(3, 4, 1)))
    with pytest.raises(RuntimeError, match="call init_process_group first"):
        model(torch.randn(2, 3, 4, 4))
