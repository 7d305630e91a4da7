"""LLTM on the GPU gives what its reference gives in float64, for every dtype, with lengths, backwards, recomputed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from tests.cuda import FLOATS, needs_gpu

pytestmark = needs_gpu
TOLERANCE = {torch.float64: 1e-11, torch.float32: 5e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


def run(op: Any, args: list[Any], kwargs: dict[str, Any], rounded: torch.dtype) -> list[Tensor]:
    """Results, and gradients of all of them at once; what comes in is of the dtype's numbers."""
    given = [a.requires_grad_() if isinstance(a, Tensor) else a for a in args]
    outs = [o for o in op(*given, **kwargs) if o is not None]
    generator = torch.Generator().manual_seed(3)
    grads = [torch.randn(o.shape, generator=generator).to(rounded).to(o) for o in outs]
    leaves = [a for a in given if isinstance(a, Tensor)]
    found = torch.autograd.grad(outs, leaves, grads, allow_unused=True)
    return [*outs, *(torch.zeros_like(t) if g is None else g for g, t in zip(found, leaves, strict=True))]


def compare(op: Any, sample: ow.Sample, dtype: torch.dtype) -> None:
    def place(value: Any, dtype: torch.dtype, device: str) -> Any:
        if not isinstance(value, Tensor):
            return value
        moved = value.detach().to(device)
        return moved.to(rounded).to(dtype) if moved.is_floating_point() else moved

    rounded = dtype
    lists = [[place(a, d, where) for a in sample.args] for d, where in ((dtype, "cuda"), (torch.float64, "cpu"))]
    kwargs = [{k: place(v, torch.float64, where) for k, v in sample.kwargs.items()} for where in ("cuda", "cpu")]
    assert op.choose(op.signature.bind(tuple(lists[0]), kwargs[0]))[0] is not None
    for i, (got, want) in enumerate(
        zip(run(op, lists[0], kwargs[0], dtype), run(op.reference, lists[1], kwargs[1], dtype), strict=True)
    ):
        assert (got.dtype, got.is_cuda, got.shape) == (dtype, True, want.shape)
        size = 1 + (want.abs().max().item() if want.numel() else 0.0)
        error = (got.cpu().double() - want).abs().max().item() / size if want.numel() else 0.0
        assert error < TOLERANCE[dtype], f"{op.name} {dtype} {sample.kwargs}: result {i} is off by {error:.2g}"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", [ow.lltm_cell, ow.lltm], ids=lambda op: op.name)
def test_samples_are_right_in_every_dtype(op: Any, dtype: torch.dtype) -> None:
    for sample in op.draw_samples(ow.Maker(torch.float64)):
        compare(op, sample, dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("recompute", [False, True])
def test_shapes_that_nobody_tuned_for_are_right(dtype: torch.dtype, recompute: bool) -> None:
    make = ow.Maker(torch.float64)
    for steps, batch, inputs, hidden in ((7, 1, 3, 1), (5, 300, 4, 7), (4, 5, 16, 333), (1, 2, 8, 64)):
        shapes = ((3 * hidden, inputs), (3 * hidden, hidden), (3 * hidden,), (3 * hidden,))
        weights = [make(*s, low=-(hidden**-0.5), high=hidden**-0.5) for s in shapes]
        lengths = torch.arange(batch) % (steps + 1)
        for more in ({}, {"lengths": lengths}, {"lengths": lengths, "reverse": True, "all_cells": True}):
            args = (make(steps, batch, inputs), *weights, make(batch, hidden), make(batch, hidden))
            compare(ow.lltm, ow.Sample(args, {**more, "recompute": recompute}), dtype)


def test_a_float_state_stays_float_beside_bfloat16() -> None:
    layer = ow.nn.LLTM(8, 16, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(5, 3, 8, device="cuda", dtype=torch.bfloat16)
    h, c = torch.zeros(1, 3, 16, device="cuda", dtype=torch.bfloat16), torch.zeros(1, 3, 16, device="cuda")
    output, (h_n, c_n), cells = layer(x, (h, c), cells=True)
    assert (output.dtype, h_n.dtype, c_n.dtype, cells.dtype) == (torch.bfloat16,) * 2 + (torch.float32,) * 2
    with torch.autocast("cuda", dtype=torch.bfloat16):
        wide = ow.nn.LLTM(8, 16, device="cuda")
        output, (_, c_n) = wide(x.float())
        assert (output.dtype, c_n.dtype) == (torch.bfloat16, torch.bfloat16)
        output.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in wide.parameters())


def test_packed_and_bidirectional_layers_match_the_cpu() -> None:
    layer = ow.nn.LLTM(5, 8, num_layers=2, bidirectional=True)
    x = torch.randn(6, 4, 5)
    lengths = torch.tensor([3, 6, 1, 4])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    expected, (h, c) = layer(packed)
    got, (h_n, c_n) = layer.cuda()(packed.cuda())
    for a, b in ((got.data, expected.data), (h_n, h), (c_n, c)):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_two_directions_at_the_same_time_give_what_they_give_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    layer = ow.nn.LLTM(24, 40, num_layers=2, bidirectional=True, device="cuda", dtype=torch.bfloat16)
    x: Any = torch.randn(60, 9, 24, device="cuda", dtype=torch.bfloat16)
    if packed:
        x = torch.nn.utils.rnn.pack_padded_sequence(x, torch.arange(9) * 7 + 1, enforce_sorted=False)
    found = []
    for steps in (1 << 40, 1):
        monkeypatch.setattr("opwright.nn.lltm.STEPS_BESIDE", steps)
        for _ in range(3):
            output, state = layer(x)
            whole = (output.data if packed else output, *state)
            grads = torch.autograd.grad([t.float().square().sum() for t in whole], list(layer.parameters()))
            spoiled = torch.full((1 << 20,), float("nan"), device="cuda")  # takes memory that was given back too early
            del spoiled
        found.append([*whole, *grads])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_cell_and_the_sequence_run_in_a_cuda_graph() -> None:
    layer = ow.nn.LLTM(16, 32, device="cuda")
    x = torch.randn(6, 4, 16, device="cuda")
    with torch.no_grad():
        expected = layer(x)[0]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = layer(x)[0]
        captured.zero_()
        graph.replay()
    torch.testing.assert_close(captured, expected)
