"""The kernels of the library's operators give on the GPU what their references give in float64 on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.dispatch import native, registry
from tests.cuda import FLOATS, needs_gpu

pytestmark = needs_gpu
OPERATORS = [op for op in registry.operators() if op.namespace == "opwright" and op.kernels and op.parent is None]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
Make = Callable[..., Tensor]

# Two operands each; operators of one take the first.
LAYOUTS: dict[str, Callable[[Make], tuple[Tensor, Tensor]]] = {
    "one element": lambda r: (r(1), r(1)),
    "no dimension": lambda r: (r(), r()),
    "less than a vector": lambda r: (r(3), r(3)),
    "less than a block": lambda r: (r(255), r(255)),
    "a block and one": lambda r: (r(2049), r(2049)),
    "many": lambda r: (r(1 << 18), r(1 << 18)),
    "not aligned": lambda r: (r(5001)[1:], r(5001)[:-1]),
    "aligned to eight bytes": lambda r: (r(5004)[4:], r(5000)),
    "matrix": lambda r: (r(128, 256), r(128, 256)),
    "transposed": lambda r: (r(256, 128).t(), r(128, 256)),
    "odd transposed": lambda r: (r(67, 131).t(), r(131, 67)),
    "both transposed": lambda r: (r(70, 130).t(), r(70, 130).t()),
    "batched transposed": lambda r: (r(3, 40, 50).transpose(1, 2), r(3, 50, 40)),
    "permuted": lambda r: (r(20, 30, 40).permute(2, 0, 1), r(40, 20, 30)),
    "a row": lambda r: (r(128, 256), r(256)),
    "an odd row": lambda r: (r(129, 255), r(255)),
    "a column": lambda r: (r(128, 256), r(128, 1)),
    "row and column": lambda r: (r(63, 1), r(65)),
    "expanded": lambda r: (r(1, 64).expand(32, 64), r(32, 64)),
    "a number's tensor": lambda r: (r(4, 5), r()),
    "empty": lambda r: (r(0, 3), r(3)),
    "slice": lambda r: (r(100, 100)[:, :64], r(100, 64)),
    "odd slice": lambda r: (r(100, 100)[:, 1:64], r(100, 63)),
    "every second": lambda r: (r(100, 100)[:, ::2], r(100, 50)),
    "channels last": lambda r: (r(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), r(3, 1, 1)),
    "six dimensions": lambda r: (r(2, 3, 1, 5, 2, 3).permute(5, 0, 3, 1, 4, 2), r(3, 2, 5, 3, 2, 1)),
}


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> str | None:
    if got.dtype != dtype or got.shape != want.shape or not got.is_cuda:
        return f"got {got.dtype} {tuple(got.shape)} on {got.device}"
    error = (got.cpu().double() - want).abs() / (1 + want.abs())
    worst = error.max().item() if error.numel() else 0.0
    return None if worst < TOLERANCE[dtype] else f"error {worst:.2g}"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_elementwise_operators_are_right_in_every_layout(dtype: torch.dtype) -> None:
    assert native.available() is None, native.available()
    wrong = []
    for layout, make in LAYOUTS.items():
        torch.manual_seed(1)
        drawn = make(lambda *shape: torch.randn(shape, dtype=torch.float64).to(dtype))
        for name, arguments in (("axpby", {"a": 2.0, "b": -0.5}), ("scale", 3.0), ("sigmoid", {}), ("cube", {})):
            op: Any = getattr(ow, name)
            used = drawn if name == "axpby" else drawn[:1]
            rest = () if isinstance(arguments, dict) else (arguments,)
            keywords = arguments if isinstance(arguments, dict) else {}
            inputs = [_moved(t).requires_grad_() for t in used]
            exact = [t.double().requires_grad_() for t in used]
            assert ow.explain(op, *inputs, *rest, **keywords).runs == "cuda.cu"
            got, want = op(*inputs, *rest, **keywords), op.reference(*exact, *rest, **keywords)
            plain = op.reference(*inputs, *rest, **keywords)
            says = [close(got, want, dtype)]
            if got.stride() != plain.stride():
                says.append(f"strides {got.stride()}, not {plain.stride()}")
            grad = torch.randn_like(want).to(dtype)
            grads = torch.autograd.grad(got, inputs, grad.cuda())
            expected = torch.autograd.grad(want, exact, grad.double())
            says += [close(p, q, dtype) for p, q in zip(grads, expected, strict=True)]
            wrong += [f"{name} {layout}: {said}" for said in says if said]
    assert not wrong, wrong


def _moved(t: Tensor) -> Tensor:
    """The same values with the same strides and offset on the GPU."""
    whole = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage()).cuda()
    return whole.as_strided(t.shape, t.stride(), t.storage_offset())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "op",
    # Long sums of LLTM's gradients are judged in test_lltm.py, by their own measure; conv_bn, whose statistics are of
    # another dtype, in test_conv_bn.py; what returns nothing by the check.
    [
        o
        for o in OPERATORS
        if not o.name.endswith("_") and o.saving_form is None and o.name != "conv_bn" and o.signature.outputs
    ],
    ids=lambda op: op.name,
)
def test_samples_agree_with_the_reference(op: ow.Op[..., Any], dtype: torch.dtype) -> None:
    for rung in (op, op.backward):
        samples = rung.draw_samples(ow.Maker(dtype, "cuda"))
        exacts = rung.draw_samples(ow.Maker(torch.float64, "cpu"))
        for sample, exact in zip(samples, exacts, strict=True):
            got, want = rung(*sample.args, **sample.kwargs), rung.reference(*exact.args, **exact.kwargs)
            for p, q in zip(*((r,) if isinstance(r, Tensor) else r for r in (got, want)), strict=True):
                assert (p is None) == (q is None)
                # linear sums a handful of products, in which float32 may use the tensor cores' shorter type
                if p is not None:
                    assert close(p, q, dtype) is None, (rung.name, close(p, q, dtype))


def test_gradients_pass_gradcheck_on_the_gpu() -> None:
    for op in (ow.axpby, ow.sigmoid, ow.cube, ow.linear):
        for sample in op.draw_samples(ow.Maker(torch.float64, "cuda")):
            inputs = [a.detach().requires_grad_() for a in sample.args if isinstance(a, Tensor)]
            call = functools.partial(op, **sample.kwargs)
            assert torch.autograd.gradcheck(call, inputs)
            assert torch.autograd.gradgradcheck(call, inputs)


def test_special_values_are_those_of_pytorch() -> None:
    x = torch.tensor(
        [0.0, -0.0, 1e-45, -1e-40, 88.0, -88.0, 89.0, -104.0, 200.0, float("inf"), -float("inf"), float("nan")]
    )
    x = x.cuda()
    torch.testing.assert_close(ow.sigmoid(x), torch.sigmoid(x), rtol=1e-6, atol=1e-44, equal_nan=True)
    torch.testing.assert_close(ow.cube(x), x * x * x, rtol=0, atol=0, equal_nan=True)
    spread = torch.linspace(-87, 87, 100001, dtype=torch.float64)
    exact = torch.sigmoid(spread.float().double())
    got = ow.sigmoid(spread.float().cuda()).cpu().double()
    assert ((got - exact).abs() / exact).max() < 4e-7


def test_calls_outside_the_domain_run_the_reference() -> None:
    x = torch.arange(6, device="cuda")
    assert ow.axpby(x, x, a=2).dtype == torch.int64
    assert ow.axpby(x, x, a=2).tolist() == [0, 3, 6, 9, 12, 15]
    y = torch.ones(6, device="cuda")
    assert ow.axpby(y, torch.tensor(2.0)).tolist() == [3.0] * 6  # a number's tensor on the CPU
    with pytest.raises(ValueError, match="x and y must broadcast"):
        ow.axpby(y, torch.ones(4, device="cuda"))
    for call in (ow.axpby, torch.ops.opwright.axpby):
        with pytest.raises(TypeError, match="axpby: y must be a Tensor, got None"):
            call(y, None)
    assert ow.scale(torch.ones(4, 0, device="cuda").t(), 3.0).shape == (0, 4)
    z = torch.ones(3, dtype=torch.complex64, device="cuda")
    assert ow.scale(z, 2j).tolist() == [2j] * 3


def test_compiled_graphs_and_inference_mode_reach_the_kernel() -> None:
    x = torch.randn(1000, device="cuda")

    def cube_and_one(x: Tensor) -> Any:
        return ow.cube(x) + 1

    compiled: Any = torch.compile(cube_and_one, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), x * x * x + 1)
    with torch.inference_mode():
        torch.testing.assert_close(ow.sigmoid(x), torch.sigmoid(x))
