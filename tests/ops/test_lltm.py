"""The points that LLTM must hold beyond its samples."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
from torch import Tensor
from torch.nn.functional import elu, linear

import opwright as ow


def weights(inputs: int, hidden: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = ((3 * hidden, inputs), (3 * hidden, hidden), (3 * hidden,), (3 * hidden,))
    return [((torch.rand(s, dtype=torch.float64) * 2 - 1) / hidden**0.5).to(dtype) for s in shapes]


def run(op: Any, args: list[Any], dtype: torch.dtype, **kwargs: Any) -> list[Tensor]:
    """Results in a dtype, and the gradients of all of them at once."""
    given = [a.detach().to(dtype).requires_grad_() for a in args]
    outs = [o for o in op(*given, **kwargs) if o is not None]
    grads = [torch.linspace(-1, 1, o.numel(), dtype=torch.float64).view(o.shape).to(dtype) for o in outs]
    return [*outs, *torch.autograd.grad(outs, given, grads)]


def errors(got: list[Tensor], exact: list[Tensor]) -> float:
    return max(
        (g.double() - e).abs().max().item() / (1 + e.abs().max().item()) for g, e in zip(got, exact, strict=True)
    )


@pytest.mark.parametrize("hidden", [1, 7, 16, 33, 333])
@pytest.mark.parametrize("batch", [1, 2, 5, 8, 19])
def test_shapes_that_nobody_tuned_for_are_right(batch: int, hidden: int) -> None:
    args = [torch.randn(3, batch, 5, dtype=torch.float64), *weights(5, hidden)]
    args += [torch.randn(batch, hidden, dtype=torch.float64) for _ in range(2)]
    lengths = torch.arange(batch) % 4
    for kwargs in ({}, {"lengths": lengths, "reverse": True}, {"recompute": True, "lengths": lengths}):
        exact = run(ow.lltm.reference, args, torch.float64, **kwargs)
        assert errors(run(ow.lltm, args, torch.float64, **kwargs), exact) < 1e-12
        assert errors(run(ow.lltm, args, torch.float32, **kwargs), exact) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_types_round_less_than_a_loop_over_many_steps(dtype: torch.dtype) -> None:
    steps, batch, hidden = 256, 2, 16
    torch.manual_seed(0)
    x = torch.randn(steps, batch, hidden).to(dtype)
    layer = weights(hidden, hidden, dtype)
    exact = ow.lltm.reference(x.double(), *(w.double() for w in layer)).output
    h, c = x.new_zeros(batch, hidden), torch.zeros(batch, hidden)
    loop = []
    for step in x:
        i, o, g = (linear(step, layer[0], layer[2]) + linear(h, layer[1], layer[3])).chunk(3, 1)
        c = c + (elu(g) * torch.sigmoid(i)).float()
        h = (torch.tanh(c) * torch.sigmoid(o)).to(dtype)
        loop.append(h)
    ours = ow.lltm(x, *layer).output
    assert (ours.double() - exact).norm() <= 2 * (torch.stack(loop).double() - exact).norm()


@pytest.mark.parametrize(
    ("dtype", "depth", "tolerance"),
    [(torch.float32, 12.0, 1e-5), (torch.bfloat16, 4.0, 2e-2), (torch.float16, 6.0, 1e-2)],
    ids=str,
)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "reference"])
def test_a_candidate_near_minus_one_keeps_the_digits_of_its_slope(
    dtype: torch.dtype, depth: float, tolerance: float, recompute: bool, kernel: bool
) -> None:
    """elu' is eˣ there, which elu + 1 does not know once elu was rounded."""
    torch.manual_seed(0)
    x, layer = torch.randn(2, 3, 4).to(dtype), weights(4, 5, dtype)
    layer[3][10:] -= depth

    exact = [t.double().requires_grad_() for t in (x, *layer)]
    expected = torch.autograd.grad(ow.lltm.reference(*exact).output.sum(), exact[4])[0][10:]
    forward: Any = ow.lltm.saving_form
    backward: Any = ow.lltm.backward
    if not kernel:
        forward, backward = forward.reference, backward.reference
    *out, gates, states = forward(
        x, *layer, None, None, lengths=None, reverse=False, all_cells=False, recompute=recompute
    )
    names = ("x", "weight_ih", "weight_hh", "bias_ih", "bias_hh", "h_0", "c_0")
    grads = dict.fromkeys(("grad_h_n", "grad_c_n", "grad_cells")) | {"grad_output": torch.ones_like(out[0])}
    given = dict(zip(names, (x, *layer, None, None), strict=True)) | {
        "output": out[0],
        "gates": gates,
        "states": states,
    }
    more = {"lengths": None, "reverse": False, "recompute": recompute, "wanted": [True] * 5 + [False] * 2}
    found = backward(**grads, **given, **more)[4][10:].double()
    assert ((found - expected) / expected).abs().max() < tolerance


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "reference"])
def test_a_cells_candidate_near_minus_one_does_too(kernel: bool) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 4), torch.randn(15, 9) * 0.3, torch.randn(15)
    bias[10:] -= 12
    state = torch.zeros(3, 5)
    exact = bias.double().requires_grad_()
    h, _ = ow.lltm_cell.reference(x.double(), weight.double(), exact, state.double(), state.double())
    expected = torch.autograd.grad(h.sum(), exact)[0][10:]
    forward: Any = ow.lltm_cell.saving_form
    backward: Any = ow.lltm_cell.backward
    if not kernel:
        forward, backward = forward.reference, backward.reference
    gates = forward(x, weight, bias, state, state)[2]
    grads = backward(torch.ones(3, 5), None, x, weight, state, state, bias, gates, wanted=[True] * 5)
    assert ((grads[2][10:] - expected) / expected).abs().max() < 1e-5


def test_a_float_state_stays_float_beside_half_types() -> None:
    x, layer = torch.randn(4, 2, 3).bfloat16(), weights(3, 5, torch.bfloat16)
    out = ow.lltm(x, *layer, None, torch.zeros(2, 5), all_cells=True)
    assert [t.dtype for t in out if t is not None] == [torch.bfloat16] * 2 + [torch.float32] * 2
    assert "cpu.cpp" in str(ow.explain(ow.lltm, x, *layer, None, torch.zeros(2, 5)))
    joined = torch.randn(15, 8).bfloat16()
    h, c = ow.lltm_cell(x[0], joined, None, torch.zeros(2, 5), torch.zeros(2, 5))
    assert (h.dtype, c.dtype) == (torch.float32, torch.float32)
    assert "cpu.cpp" in str(ow.explain(ow.lltm_cell, x[0], joined, None, h, c))


def test_autocast_casts_the_products_operands_alone_and_the_kernel_runs() -> None:
    cell = ow.nn.LLTMCell(3, 4)
    x, h, c = torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = cell(x, (h, c))
        expected = ow.lltm_cell.reference(x, cell.weight, cell.bias, h, c)
        assert [t.dtype for t in got] == [t.dtype for t in expected] == [torch.float32] * 2
        got[0].sum().backward()
    assert cell.weight.grad is not None
    assert cell.weight.grad.dtype == torch.float32
    torch.testing.assert_close(got, tuple(expected), rtol=0, atol=0.03)


def test_recomputing_halves_what_is_kept_and_changes_nothing() -> None:
    x, layer = torch.randn(20, 4, 16, requires_grad=True), [w.requires_grad_() for w in weights(16, 16, torch.float32)]
    kept, grads = [], []
    for recompute in (False, True):
        storages: dict[int, int] = {}

        def pack(t: Tensor, storages: dict[int, int] = storages) -> Tensor:
            storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            out = ow.lltm(x, *layer, recompute=recompute).output
        for t in (x, *layer):
            storages.pop(t.untyped_storage().data_ptr(), None)  # inputs are there anyway
        kept.append(sum(storages.values()))
        grads.append(torch.autograd.grad(out.sum(), [x, *layer]))
    assert kept[1] <= kept[0] / 2
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gates_computed_again_are_rounded_as_those_that_are_kept(dtype: torch.dtype) -> None:
    x = (64 * torch.randn(3, 2, 4)).to(dtype)  # where 1 - sigmoid is lost by rounding
    layer = {"x": x, **dict(zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), weights(4, 5, dtype), strict=True))}
    rest: dict[str, Any] = {"h_0": None, "c_0": None, "lengths": None, "reverse": False, "all_cells": False}
    assert ow.lltm.saving_form is not None
    found = []
    for recompute in (False, True):
        kept = ow.lltm.saving_form.reference(**layer, **rest, recompute=recompute)
        given = {**layer, **rest, "output": kept[0], "gates": kept[-2], "states": kept[-1], "recompute": recompute}
        for name in ("grad_h_n", "grad_c_n", "grad_cells"):
            given[name] = None
        found.append(ow.lltm.backward.reference(grad_output=torch.ones_like(kept[0]), **given, wanted=None))
    for a, b in zip(*found, strict=True):
        assert a is b is None or torch.equal(a, b)


def test_second_derivatives_are_those_of_the_reference() -> None:
    args = [torch.randn(3, 2, 2, dtype=torch.float64), *weights(2, 3), *torch.randn(2, 2, 3, dtype=torch.float64)]
    given = [a.requires_grad_() for a in args]
    assert torch.autograd.gradgradcheck(lambda *a: ow.lltm(*a)[:3], given, fast_mode=True)
    cell = [torch.randn(2, 2, dtype=torch.float64), torch.randn(9, 5, dtype=torch.float64), None]
    cell += list(torch.randn(2, 2, 3, dtype=torch.float64))
    given = [a if a is None else a.requires_grad_() for a in cell]
    assert torch.autograd.gradcheck(ow.lltm_cell, given)
    assert torch.autograd.gradgradcheck(ow.lltm_cell, given)


def test_nan_in_the_weights_is_where_the_reference_has_it() -> None:
    x, layer = torch.randn(2, 3, 4), weights(4, 5, torch.float32)
    for row in (0, 7, 12):  # input gate, output gate, candidate
        spoiled = [w.clone() for w in layer]
        spoiled[0][row, 1] = float("nan")
        for steps in (1, 2):
            got, expected = (f(x[:steps], *spoiled, all_cells=True) for f in (ow.lltm, ow.lltm.reference))
            for a, b in zip(got, expected, strict=True):
                torch.testing.assert_close(a, b, equal_nan=True)
    wild = [w * 1e4 for w in layer]
    torch.testing.assert_close(tuple(ow.lltm(x, *wild)[:3]), tuple(ow.lltm.reference(x, *wild)[:3]))


@pytest.mark.parametrize("argument", ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "h_0", "c_0"])
def test_another_dtype_or_device_is_refused_by_name(argument: str) -> None:
    x, layer, state = torch.randn(2, 3, 4), weights(4, 5, torch.float32), torch.zeros(3, 5)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "h_0", "c_0")
    given = dict(zip(names, (*layer, state, state), strict=True))
    for op in (ow.lltm, ow.lltm.reference):
        with pytest.raises(ValueError, match=f"{argument} must be float32, as x is, got float64"):
            op(x, **given | {argument: given[argument].double()})
        with pytest.raises(ValueError, match=f"{argument} must be on cpu, as x is, got meta"):
            op(x, **given | {argument: given[argument].to("meta")})
    with pytest.raises(ValueError, match="lltm: c_0 must be bfloat16, as x is or float32, got float64"):
        ow.lltm(x.bfloat16(), **{name: t.bfloat16() for name, t in given.items()} | {"c_0": state.double()})
    with pytest.raises(NotImplementedError, match="lltm: x must be a floating-point tensor, got int64"):
        ow.lltm(x.long(), **given)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_stands_beyond_the_lengths_is_not_read(reverse: bool, recompute: bool, dtype: torch.dtype) -> None:
    layer = [w.requires_grad_() for w in weights(4, 5, dtype)]
    clean = torch.randn(6, 3, 4, dtype=torch.float64).to(dtype)
    spoiled, lengths = clean.clone(), torch.tensor([6, 2, 0])
    for row, length in enumerate(lengths):
        clean[length:, row] = 0
        spoiled[length:, row] = float("nan") if row == 1 else float("inf")
    for op in (ow.lltm, ow.lltm.reference):
        found = []
        for x in (clean, spoiled):
            given = [x.clone().requires_grad_(), *layer]
            out = op(*given, lengths=lengths, reverse=reverse, recompute=recompute)
            found.append([*out[:3], *torch.autograd.grad(sum(o.float().square().sum() for o in out[:3]), given)])
        for a, b in zip(*found, strict=True):
            assert torch.equal(a, b)


def test_second_derivatives_do_not_read_beyond_the_lengths_either() -> None:
    layer = [w.requires_grad_() for w in weights(2, 3, torch.float64)]
    x = torch.randn(4, 2, 2, dtype=torch.float64)
    x[1:, 1] = float("nan")
    out = ow.lltm(x, *layer, lengths=torch.tensor([4, 1])).output
    first = torch.autograd.grad(out.square().sum(), layer, create_graph=True)
    second = torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), layer)
    assert all(bool(g.isfinite().all()) and bool(g.any()) for g in second)


def test_lengths_beyond_the_steps_count_as_all_of_them() -> None:
    x, layer = torch.randn(3, 4, 2), weights(2, 5, torch.float32)
    lengths = torch.tensor([7, 3, -2, 0])
    got, expected = (tuple(f(x, *layer, lengths=lengths)[:3]) for f in (ow.lltm, ow.lltm.reference))
    torch.testing.assert_close(got, expected)


def test_the_number_of_threads_changes_no_bit() -> None:
    x, layer = torch.randn(9, 37, 40), weights(40, 130, torch.float32)
    before = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            found.append(run(ow.lltm, [x, *layer], torch.float32, lengths=torch.arange(37) % 10))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0][:3], other[:3], strict=True))
        torch.testing.assert_close(found[0], other)


def test_threads_that_call_at_once_do_not_wait_for_each_other() -> None:
    x, layer = torch.randn(20, 16, 64), weights(64, 64, torch.float32)
    expected = ow.lltm(x, *layer).output
    results: list[Tensor] = []

    def work() -> None:
        for _ in range(5):
            results.append(ow.lltm(x, *layer).output)

    callers = [threading.Thread(target=work) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not any(caller.is_alive() for caller in callers)
    assert len(results) == 20
    assert all(torch.equal(r, expected) for r in results)


READS_NUMBERS = """
import torch, opwright as ow
for dtype in (torch.bfloat16, torch.float16):
    for hidden in range(1, 9):
        x, h = torch.ones(3, 2, 4, dtype=dtype), torch.ones(2, hidden, dtype=dtype)
        wi, wh, b = (torch.ones(3 * hidden, *n, dtype=dtype) for n in ((4,), (hidden,), ()))
        out = ow.lltm(x, wi, wh, b, b, h, h)
        assert all(bool(t.isfinite().all()) for t in out if t is not None)
"""


def test_half_types_read_no_freed_memory() -> None:
    """glibc overwrites what is freed, so that a stale pointer is followed into nowhere."""
    environment = {**os.environ, "MALLOC_PERTURB_": "165"}
    done = subprocess.run(
        [sys.executable, "-c", READS_NUMBERS], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"


@pytest.mark.slow
def test_four_thousand_steps_compile_like_ten() -> None:
    """Forward and backward, what a first call takes longer than a second; the best of several, since machines pause."""
    layer = [w.requires_grad_() for w in weights(4, 8, torch.float32)]

    def compiling(steps: int) -> float:
        uncached = torch._inductor.config.patch(fx_graph_cache=False)
        with uncached, torch._functorch.config.patch(enable_autograd_cache=False):
            return timed(steps)

    def timed(steps: int) -> float:
        torch.compiler.reset()
        run = torch.compile(lambda x: ow.lltm(x, *layer).output.square().mean(), fullgraph=True)
        x = torch.randn(steps, 2, 4, requires_grad=True)
        times = []
        for _ in range(2):
            start = time.perf_counter()
            run(x).backward()
            times.append(time.perf_counter() - start)
        return times[0] - times[1]

    compiling(10)
    found: dict[int, list[float]] = {10: [], 4000: []}
    for _ in range(3):
        for steps, times in found.items():
            times.append(compiling(steps))
    assert min(found[4000]) < 1.3 * min(found[10]), found


def test_a_length_may_be_dynamic_compiled_and_exported() -> None:
    layer = weights(4, 8)

    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = ow.lltm(x, *layer).output
            return output

    steps = torch.export.Dim("steps", min=2, max=8000)
    program = torch.export.export(Model(), (torch.randn(10, 2, 4, dtype=torch.float64),), dynamic_shapes=({0: steps},))
    assert len(list(program.graph.nodes)) < 20
    run = torch.compile(Model(), fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (10, 25, 1000):
        x = torch.randn(length, 2, 4, dtype=torch.float64)
        expected = ow.lltm(x, *layer).output
        torch.testing.assert_close(program.module()(x), expected)
        torch.testing.assert_close(run(x), expected)
