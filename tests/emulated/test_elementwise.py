"""The headers for CUDA, by the operators and templates that are made of them: maps, walks, tiles and sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.scaffold import scaffold
from tests import emulated
from tests.cuda import FLOATS
from tests.cuda.test_kernels import LAYOUTS, TOLERANCE

ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "axpby": ((), {"a": 2.0, "b": -0.5}),
    "sigmoid": ((), {}),
    "scale": ((3.0,), {}),
    "cube": ((), {}),
}
NAMED = [pytest.param(name, marks=pytest.mark.slow if name in ("scale", "cube") else ()) for name in ARGUMENTS]


def wrong(got: Tensor, want: Tensor) -> str | None:
    if got.shape != want.shape:
        return f"shape {tuple(got.shape)}"
    error = (got.double() - want).abs() / (1 + want.abs())
    worst = error.max().item() if error.numel() else 0.0
    return None if worst < TOLERANCE[got.dtype] else f"off by {worst:.2g}"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", NAMED)
def test_elementwise_operators_are_right_in_every_layout(
    ops: Any, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMULATED_SEED", str(FLOATS.index(dtype)))
    op: Any = getattr(ops, name)
    rest, keywords = ARGUMENTS[name]
    said = []
    for layout, make in LAYOUTS.items():
        drawn = make(lambda *shape: torch.randn([min(n, 1 << 14) for n in shape], dtype=torch.float64).to(dtype))
        inputs = [t.detach().requires_grad_() for t in (drawn if name == "axpby" else drawn[:1])]
        exact = [t.detach().double().requires_grad_() for t in inputs]
        assert ow.explain(op, *inputs, *rest, **keywords).runs == "cuda_emulated.cpp"
        got, want = op(*inputs, *rest, **keywords), op.reference(*exact, *rest, **keywords)
        found = [wrong(got, want)]
        if got.stride() != op.reference(*inputs, *rest, **keywords).stride():
            found.append(f"strides {got.stride()}")
        grad = torch.randn_like(want).to(dtype)
        grads = torch.autograd.grad(got, inputs, grad), torch.autograd.grad(want, exact, grad.double())
        found += [wrong(a, b) for a, b in zip(*grads, strict=True)]
        said += [f"{layout}: {each}" for each in found if each]
    assert not said


def test_different_floats_are_computed_in_the_widest(ops: Any) -> None:
    x, y = torch.randn(70, 33, dtype=torch.bfloat16), torch.randn(33, 70).t()
    torch.testing.assert_close(ops.axpby(x, y, a=3), 3 * x + y)


def test_nothing_is_written_beside_the_result(ops: Any) -> None:
    for n in (1, 7, 255, 1000, 2049):
        for offset in range(5):
            whole = torch.full((n + 64,), 77.0)
            view = whole[16 + offset : 16 + offset + n]
            ops.axpby_(view, torch.ones(n), a=0)
            assert view.unique().tolist() == [1.0]
            assert whole[: 16 + offset].unique().tolist() == [77.0]
            assert whole[16 + offset + n :].unique().tolist() == [77.0]


HEADERS = """
#include <opwright/kernel.h>
Tensor squares(const Tensor& x, const Tensor& like) {
    return sum_to(like, [] __device__(auto v) { return v * v; }, x);
}
Tensor products(const Tensor& x, const Tensor& y, const Tensor& like) {
    return sum_to(like, [] __device__(auto v, auto w) { return v * w; }, x, y);
}
template <class I>
__global__ void turn(Packed<const float, 2, I> x, Packed<float, 2, I> out) {
    for (I i = blockIdx.x * blockDim.x + threadIdx.x; i < x.size(0); i += gridDim.x * blockDim.x)
        for (I j = 0; j < x.size(1); ++j) out(i, j) = x(x.size(0) - 1 - i, j);
}
std::tuple<Tensor, Tensor> both(const Tensor& x, double a, bool wide) {
    Tensor out = empty(with_number(x), dtype(x)), other = empty(with_number(x), dtype(x));
    map_into(into(out, other), [] __device__(auto x, auto a) { return several(a * x, simd::exp(x)); }, x, a);
    if (wide) launch(turn<int64_t>, {3, 64}, packed<const float, 2>(x), packed<float, 2>(out));
    if (!wide) launch(turn<int32_t>, {3, 64}, packed<const float, 2, int32_t>(x), packed<float, 2, int32_t>(out));
    float* const p = data<float>(other);
    for_each(other.numel(), [=] __device__(int64_t i) { p[i] += 1; });
    return {out, other};
}
"""
SHAPES = [
    ((1100, 50), (50,)),
    ((40, 1100), (40, 1)),
    ((40, 7, 90), (7, 1)),
    ((90000,), ()),
    ((3, 20000), (3, 1)),
    ((30000, 2), (2,)),
    ((5, 0), (5, 1)),
    ((2, 3), ()),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return emulated.functions(tmp_path_factory.mktemp("headers"), HEADERS, "squares", "products", "both")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_sums_are_right_along_any_dimensions_and_the_same_each_time(
    made: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shape, small in SHAPES:
        like, back = torch.empty(small, dtype=dtype), list(range(len(shape)))[::-1]
        for x in (torch.randn(shape).to(dtype), torch.randn(shape[::-1]).to(dtype).permute(back)):
            y = torch.randn(shape[-1:]).to(dtype)
            want = [(x.double() ** 2).sum_to_size(small), (x.double() * y.double()).sum_to_size(small)]
            found = []
            for seed in ("0", "3"):
                monkeypatch.setenv("EMULATED_SEED", seed)
                found.append((made.squares(x, like), made.products(x, y, like)))
            for got, right, again in zip(found[0], want, found[1], strict=True):
                size = max(right.abs().max().item(), shape[0] ** 0.5, 1.0) if right.numel() else 1.0
                torch.testing.assert_close(got.double() / size, right / size, rtol=0, atol=TOLERANCE[dtype])
                assert torch.equal(got, again)


@pytest.mark.parametrize("wide", [False, True], ids=["32 bits", "64 bits"])
def test_several_results_accessors_and_loops_are_right(made: Any, wide: bool, seed: int) -> None:
    for x in (torch.randn(333, 7), torch.randn(7, 333).t(), torch.randn(50, 40)[:, ::2]):
        out, other = made.both(x, 2.0, wide)
        assert torch.equal(out, x.flip(0))
        torch.testing.assert_close(other, x.exp() + 1)


def test_functions_of_the_headers_are_as_exact_as_they_say(ops: Any) -> None:
    x = torch.linspace(-87, 87, 100_001).float()
    exact = torch.sigmoid(x.double())
    assert ((ops.sigmoid(x).double() - exact).abs() / exact).max() < 4e-7
    ends = torch.tensor([0.0, -0.0, 1e-45, 88.0, -88.0, 89.0, -104.0, 200.0, float("inf"), -float("inf"), float("nan")])
    torch.testing.assert_close(ops.sigmoid(ends), torch.sigmoid(ends), rtol=1e-6, atol=1e-44, equal_nan=True)


def test_running_statistics_are_updated(ops: Any, seed: int) -> None:
    for channels, count, values, momentum in ((3, None, 7, 0.1), (700, 9.0, 0, None), (5, 0.0, 0, 0.3)):
        given = [torch.rand(channels, dtype=torch.float64) + 0.5 for _ in range(4)]
        number = None if count is None else torch.tensor(count, dtype=torch.float64)
        got, want = ([t.clone() for t in given] for _ in range(2))
        for op, (mean, var, *rest) in ((ops.track_statistics, got), (ow.track_statistics, want)):
            batches = torch.tensor(4)
            op(mean, var, batches, *rest, number, values=values, momentum=momentum)
            assert batches == 5
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        assert (count == 0) == torch.equal(got[0], given[0])


@pytest.mark.slow
@pytest.mark.parametrize("rows", [False, True], ids=["elementwise", "rows"])
def test_what_a_new_operator_begins_with_is_right(rows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMULATED_SEED", "4")
    scaffold("begun", tmp_path / "made", rows=rows, cuda=True)
    made = emulated.operators(tmp_path, tmp_path / "made" / "begun", namespace=f"emulated_template_{int(rows)}")
    for dtype in FLOATS:
        for shape in ((3,), (16, 33), (1, 256), (7, 257), (3, 5, 1000), (0, 4), (70, 1)):
            x = torch.randn(shape).to(dtype).requires_grad_()
            exact = x.detach().double().requires_grad_()
            assert ow.explain(made.begun, x).runs == "cuda_emulated.cpp"
            got, want = made.begun(x), made.begun.reference(exact)
            grad = torch.randn(shape).to(dtype)
            grads = torch.autograd.grad(got, x, grad)[0], torch.autograd.grad(want, exact, grad.double())[0]
            assert (wrong(got, want), wrong(*grads)) == (None, None), (dtype, shape)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["axpby", "cube", "scale", "sigmoid", "track_statistics"])
def test_every_property_holds_that_tells_something_here(ops: Any, name: str) -> None:
    report = ow.check(getattr(ops, name), only=["forward", "gradients", "special", "memory", "determinism", "vmap"])
    assert report.passed, str(report)


@pytest.mark.slow
def test_what_32_bits_do_not_number_is_walked_in_parts(tmp_path: Path) -> None:
    changes = {"int64_t(1) << 31": "int64_t(3000)", "- (1 << 20)": ""}
    made = emulated.operators(tmp_path, "axpby", namespace="emulated_parts", changes=changes)
    for layout, make in LAYOUTS.items():
        x, y = make(lambda *shape: torch.randn(shape))
        assert wrong(made.axpby(x, y, a=2), 2 * x.double() + y.double()) is None, layout
