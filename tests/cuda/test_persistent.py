"""LLTM in one launch for all steps: right for any size, the same each time, beside other work, in graphs; no hang."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from tests.cuda import needs_gpu

pytestmark = needs_gpu
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TOLERANCE = {torch.float32: 5e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}
SHAPES = (  # steps, batch, inputs, hidden
    (9, 1, 5, 1),
    (7, 9, 8, 17),
    (12, 20, 16, 100),
    (2, 3, 8, 256),
    (5, 70, 4, 320),
    (6, 33, 8, 384),
    (4, 17, 8, 514),
    (4, 9, 8, 800),
    (3, 130, 8, 1000),
)


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """A kernel that waits for ever cannot be interrupted: the process ends, and says where it was."""
    faulthandler.dump_traceback_later(100, exit=True)
    yield
    torch.cuda.synchronize()
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(params=["persistent"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("OPWRIGHT_LLTM", request.param)
    return monkeypatch


def drawn(steps: int, batch: int, inputs: int, hidden: int, dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)

    def make(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, device="cuda", generator=generator) * scale).to(dtype)

    shapes = ((3 * hidden, inputs), (3 * hidden, hidden), (3 * hidden,), (3 * hidden,))
    weights = [make(*s, scale=0.6 * hidden**-0.5) for s in shapes]
    return [make(steps, batch, inputs), *weights, make(batch, hidden), make(batch, hidden)]


def run(op: Any, args: list[Tensor], **kwargs: Any) -> list[Tensor]:
    """Results, and the gradients of all of them at once."""
    given = [a.detach().requires_grad_() for a in args]
    outs = [o for o in op(*given, **kwargs) if o is not None]
    generator = torch.Generator("cuda").manual_seed(3)
    grads = [torch.randn(o.shape, generator=generator, device="cuda").bfloat16().to(o.dtype) for o in outs]
    return [*outs, *torch.autograd.grad(outs, given, grads)]


def error(got: Tensor, want: Tensor) -> float:
    off, size = (got.double() - want.double()).norm().item(), want.double().norm().item()
    return float(off / size if size else off)


def lengths_of(steps: int, batch: int) -> Tensor:
    return torch.arange(batch, device="cuda") * 3 % (steps + 2)  # none, all, and more than all


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_size_is_right(path: pytest.MonkeyPatch, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    args = drawn(*shape, dtype)
    lengths = lengths_of(shape[0], shape[1])
    back = {"lengths": lengths, "reverse": True}
    for more in ({}, {"lengths": lengths}, {"reverse": True}, {**back, "all_cells": True}, {**back, "recompute": True}):
        want = run(ow.lltm.reference, [a.double() for a in args], **more)
        got = run(ow.lltm, args, **more)
        path.setenv("OPWRIGHT_LLTM", "looped")
        looped = run(ow.lltm, args, **more)
        path.setenv("OPWRIGHT_LLTM", "persistent")
        for i, (a, b, c) in enumerate(zip(got, looped, want, strict=True)):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            ours, theirs = error(a, c), error(b, c)
            assert ours < TOLERANCE[dtype], f"{more}: result {i} is off by {ours:.2g}, the loop's by {theirs:.2g}"
            # Of a few numbers one may be off by some units in the last place where the loop's are not; the largest
            # ratio that an H200 has shown is 1.57.
            assert ours < 2 * theirs + 4 * torch.finfo(torch.float32).eps, (
                f"{more}: result {i} is off by {ours:.2g}, the loop's by {theirs:.2g}"
            )


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_more_than_1024_hidden_units_in_half_precision(dtype: torch.dtype) -> None:
    args = drawn(4, 9, 8, 1300, dtype)
    for a, b in zip(run(ow.lltm, args), run(ow.lltm.reference, [a.double() for a in args]), strict=True):
        assert error(a, b) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_left_out_and_what_is_wider(path: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    x, weight_ih, weight_hh, _, bias_hh, h_0, c_0 = drawn(6, 11, 8, 72, dtype)
    for args, more in (
        ((x, weight_ih, weight_hh), {}),
        ((x, weight_ih, weight_hh), {"recompute": True, "lengths": lengths_of(6, 11)}),
        ((x, weight_ih, weight_hh, None, bias_hh, None, c_0.float()), {"all_cells": True}),
        ((x, weight_ih, weight_hh, None, None, h_0.t().contiguous().t()), {}),
        ((x.transpose(0, 1).contiguous().transpose(0, 1), weight_ih, weight_hh.t().contiguous().t()), {}),
    ):
        results = []
        for which in ("persistent", "looped"):
            path.setenv("OPWRIGHT_LLTM", which)
            given = [a if a is None else a.detach().requires_grad_() for a in args]
            outs = [o for o in ow.lltm(*given, **more) if o is not None]
            loss = sum((o.float() * o.float()).sum() for o in outs)
            leaves = [g for g in given if g is not None]
            results.append([*outs, *torch.autograd.grad(loss, leaves)])  # type: ignore[arg-type]
        for a, b in zip(*results, strict=True):
            assert a.dtype == b.dtype
            assert error(a, b) < TOLERANCE[dtype]


@pytest.mark.parametrize("which", ["persistent", "looped"])
@pytest.mark.parametrize("reverse", [False, True])
def test_what_stands_beyond_the_lengths_is_not_read(path: pytest.MonkeyPatch, which: str, reverse: bool) -> None:
    path.setenv("OPWRIGHT_LLTM", which)
    args = drawn(9, 5, 8, 20, torch.bfloat16)
    lengths = torch.tensor([9, 2, 0, 4, 1], device="cuda")
    beyond = torch.arange(9, device="cuda")[:, None] >= lengths
    found = []
    for filling in (0.0, float("nan"), float("inf")):
        given = [args[0].masked_fill(beyond[..., None], filling), *args[1:]]
        found.append(run(ow.lltm, given, lengths=lengths, reverse=reverse))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_runs_are_the_same_to_the_bit(dtype: torch.dtype) -> None:
    args = drawn(40, 40, 16, 512, dtype)
    first = run(ow.lltm, args)
    for _ in range(4):
        assert all(torch.equal(a, b) for a, b in zip(first, run(ow.lltm, args), strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_finite_stays_where_the_loop_has_it(path: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    found = []
    for which in ("persistent", "looped"):
        path.setenv("OPWRIGHT_LLTM", which)
        args = drawn(7, 10, 8, 20, dtype)  # padded inside
        args[0][2, 4, 3] = float("nan")
        args[5][6, 7] = float("inf")
        args[0][5, 8, 1] = float("-inf")
        outs = ow.lltm(*args, all_cells=True)
        found.append([o.isnan() for o in outs if o is not None] + [o.isinf() for o in outs if o is not None])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("which", ["persistent", "looped"])
def test_an_infinite_gradient_meets_h_0_and_no_zeros(path: pytest.MonkeyPatch, which: str) -> None:
    path.setenv("OPWRIGHT_LLTM", which)
    args = drawn(3, 2, 4, 8, torch.float32)
    lengths = torch.tensor([1, 3], device="cuda")
    output = run(ow.lltm, args, lengths=lengths, reverse=True)[0]
    found = []
    for op in (ow.lltm, ow.lltm.reference):
        given = [a.detach().requires_grad_() for a in args]
        grad = torch.ones_like(output)
        grad[0, 0] = float("inf")
        out = op(*given, lengths=lengths, reverse=True)[0]
        found.append(torch.autograd.grad(out, given[2], grad)[0])
    assert torch.equal(found[0].isnan(), found[1].isnan())
    assert not found[0].isnan().all()


def test_beside_kernels_that_fill_the_gpu() -> None:
    args = drawn(64, 64, 64, 1024, torch.bfloat16)
    alone = run(ow.lltm, args)
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(40):
            a = a @ a * 1e-2
    for _ in range(3):
        assert all(torch.equal(x, y) for x, y in zip(alone, run(ow.lltm, args), strict=True))


def test_two_of_them_on_two_streams_and_in_two_threads() -> None:
    sets = [drawn(128, 64, 64, 1024, torch.bfloat16), drawn(128, 16, 64, 768, torch.float16)]
    sets += [drawn(64, 64, 64, 1024, torch.float32), drawn(100, 8, 16, 256, torch.float32)]
    alone = [run(ow.lltm, args) for args in sets]
    torch.cuda.synchronize()
    wrong: list[str] = []

    def work(which: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for turn in range(6):
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_graph_replays_forward_and_backward(dtype: torch.dtype) -> None:
    args = drawn(20, 24, 16, 320, dtype)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(ow.lltm, args)
    torch.cuda.current_stream().wait_stream(side)
    given = [a.detach().clone().requires_grad_() for a in args]
    grad = torch.ones(20, 24, 320, device="cuda", dtype=dtype)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = ow.lltm(*given).output
        captured = torch.autograd.grad(output, given, grad)
    for seed in (1, 2):
        with torch.no_grad():
            for to, value in zip(given, drawn(20, 24, 16, 320, dtype, seed), strict=True):
                to.copy_(value)
        graph.replay()
        fresh = [a.detach().clone().requires_grad_() for a in given]
        want = ow.lltm(*fresh).output
        assert torch.equal(output, want)
        for a, b in zip(captured, torch.autograd.grad(want, fresh, grad), strict=True):
            assert torch.equal(a, b)


def test_what_does_not_fit_takes_the_loop(path: pytest.MonkeyPatch) -> None:
    args = drawn(2, 3, 8, 2100, torch.bfloat16)
    with pytest.raises(RuntimeError, match="do not fit on this GPU"):
        ow.lltm(*args)
    path.delenv("OPWRIGHT_LLTM")
    chosen = ow.lltm(*args).output
    path.setenv("OPWRIGHT_LLTM", "looped")
    assert torch.equal(chosen, ow.lltm(*args).output)


def test_the_cheaper_path_is_chosen(path: pytest.MonkeyPatch) -> None:
    for shape, dtype, expected in (
        ((64, 32, 16, 512), torch.bfloat16, "persistent"),
        ((20, 4096, 16, 1024), torch.bfloat16, "looped"),
        ((50, 1, 16, 256), torch.float32, "persistent"),
    ):
        args = drawn(*shape, dtype)
        path.setenv("OPWRIGHT_LLTM", expected)
        forced = ow.lltm(*args).output
        path.delenv("OPWRIGHT_LLTM")
        assert torch.equal(ow.lltm(*args).output, forced)


def test_explain_says_which_path_and_why(path: pytest.MonkeyPatch) -> None:
    def told(shape: tuple[int, int, int, int], dtype: torch.dtype = torch.bfloat16, recorded: bool = False) -> str:
        args = [a.requires_grad_(recorded) for a in drawn(*shape, dtype)]
        ow.lltm(*args)  # built and loaded
        return ow.explain(ow.lltm, *args).steps[1 if recorded else 0].why

    small = told((64, 32, 16, 512), recorded=True)
    assert "persistent in 1 launch of " in small
    assert "KiB of shared memory" in small
    assert "; its gradient: persistent in 1 launch of " in small
    path.delenv("OPWRIGHT_LLTM")
    large = told((2, 3, 8, 2100))
    assert "looped, since the weights of 2100 hidden units do not fit on chip: of at most 2048 here" in large
    assert "looped, since that is thought to take " in told((2, 4096, 16, 1024))
    assert "looped, since double has no persistent kernel" in told((2, 3, 4, 5), dtype=torch.float64)
    path.setenv("OPWRIGHT_LLTM", "looped")
    assert "looped, since OPWRIGHT_LLTM says so" in told((64, 32, 16, 512))


OLDER = """
import torch, opwright as ow
from tests.cuda import test_persistent as t
for dtype in t.DTYPES:
    for shape in t.SHAPES:
        args = t.drawn(*shape, dtype)
        exact = [a.double() for a in args]
        if shape[-1] <= 384:  # clusters, which sum for more units in the backward, are of sm_90
            results = zip(t.run(ow.lltm, args), t.run(ow.lltm.reference, exact), strict=True)
        else:
            results = zip(ow.lltm(*args)[:3], ow.lltm.reference(*exact)[:3], strict=True)
        print(shape, dtype, all(t.error(a, b) < t.TOLERANCE[dtype] for a, b in results))
"""


def test_code_for_sm_80_runs_here(tmp_path: Path) -> None:
    settings = {"OPWRIGHT_CUDA_ARCH": "8.0+PTX", "OPWRIGHT_CACHE_DIR": str(tmp_path), "OPWRIGHT_LLTM": "persistent"}
    faulthandler.cancel_dump_traceback_later()  # it is built first
    done = subprocess.run(
        [sys.executable, "-c", OLDER], env=os.environ | settings, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["True"] * len(SHAPES) * len(DTYPES), done.stdout
