"""Operators made of what exists: its calls run as kernels, what it keeps reaches its backward, the rest is the
reference's."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import opwright as ow
from opwright.kit.dispatch import adopted, native, registry


class Both(NamedTuple):
    scaled: Tensor
    total: Tensor


def plain(x: Tensor, w: Tensor, by: float = 2.0) -> Both:
    ow.require(x.dim() == 1, "x must have one dimension, got {x.shape}")
    return Both(x * w * by, (x * w).sum())


calls: list[str] = []


class Old(torch.autograd.Function):
    """With a context that keeps tensors, numbers and an object."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, by: float) -> Any:
        calls.append("forward")
        ctx.save_for_backward(x, w)
        ctx.by, ctx.note = by, {"kept": "unchanged"}
        return x * w * by, (x * w).sum()

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> Any:
        calls.append("backward")
        assert ctx.note == {"kept": "unchanged"}
        x, w = ctx.saved_tensors
        back = a * ctx.by + b
        return back * w, back * x, None


def old_forward(x: Tensor, w: Tensor, by: float) -> list[Tensor]:
    calls.append("forward")
    product = x * w
    return [product * by, product.sum(), product]


def old_backward(grad_scaled: Tensor, grad_total: Tensor, product: Tensor, w: Tensor, x: Tensor, by: float) -> Any:
    calls.append("backward")
    assert torch.equal(product, x * w)
    back = grad_scaled * by + grad_total
    return back * x, back * w


def of_pair(name: str = "adopted_pair", **more: Any) -> ow.Op[..., Any]:
    return ow.adopt(
        old_forward,
        backward=old_backward,
        reference=plain,
        name=name,
        saves=["product"],
        takes=["grad_scaled", "grad_total", "product", "w", "x", "by"],
        gives=["w", "x"],
        **more,
    )


def of_function() -> ow.Op[..., Any]:
    return ow.adopt(Old, reference=plain, name="adopted_function")


@torch.library.custom_op("adopted_tests::both", mutates_args=())
def custom(x: Tensor, w: Tensor, by: float) -> tuple[Tensor, Tensor]:
    calls.append("forward")
    return x * w * by, (x * w).sum()


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.by = inputs[2]


def _backward(ctx: Any, a: Tensor, b: Tensor) -> Any:
    calls.append("backward")
    x, w = ctx.saved_tensors
    back = a * ctx.by + b
    return back * w, back * x, None


custom.register_autograd(_backward, setup_context=_setup)

WAYS: dict[str, Any] = {
    "pair": of_pair,
    "function": of_function,
    "custom_op": lambda: ow.adopt(custom, reference=plain, name="adopted_custom"),
    "torch.ops": lambda: ow.adopt(torch.ops.adopted_tests.both.default, reference=plain, name="adopted_ops"),
}
THREE: Any = 3
X, W = torch.tensor([1.0, 3.0]), torch.tensor([2.0, -1.0])


@pytest.mark.parametrize("way", WAYS)
def test_its_calls_and_its_backward_run_and_are_right(way: str) -> None:
    op = WAYS[way]()
    for _ in range(2):  # the first call is recorded in Python, the second in C++
        calls.clear()
        assert [t.tolist() for t in op(X, W, by=3.0)] == [[6.0, -9.0], -1.0]
        assert calls == ["forward"]
        leaves = [t.clone().requires_grad_() for t in (X, W)]
        scaled, total = op(*leaves, 3.0)
        assert isinstance(op(*leaves), Both)
        (scaled.sum() + 2 * total).backward()
        assert [t.grad.tolist() for t in leaves if t.grad is not None] == [[10.0, -5.0], [5.0, 15.0]]
        assert calls == ["forward", "forward", "forward", "backward"]
    said = str(ow.explain(op, *leaves))
    assert "recorded" in said
    assert "kernel" in said


@pytest.mark.parametrize("way", WAYS)
def test_what_it_cannot_do_the_reference_does(way: str) -> None:
    op = WAYS[way]()
    x, w = X.double().requires_grad_(), W.double().requires_grad_()
    assert torch.autograd.gradcheck(op, (x, w))
    assert torch.autograd.gradgradcheck(op, (x, w))
    batch = torch.stack((X, 2 * X))
    assert torch.func.vmap(op, in_dims=(0, None))(batch, W)[1].tolist() == [-1.0, -2.0]
    assert torch.func.jvp(op, (X, W), (torch.ones(2), torch.zeros(2)))[1][1].item() == 1.0
    compiled = torch.compile(lambda x, w: op(x, w)[0] + 1, backend="aot_eager", fullgraph=True)
    assert compiled(X, W).tolist() == [5.0, -5.0]
    with torch.inference_mode():
        assert op(X, W)[1].item() == -1.0
    calls.clear()
    assert op(X.to(torch.complex64), W.to(torch.complex64))[1].item() == -1.0
    assert calls == []  # outside of its domain


def test_what_the_reference_rejects_is_rejected_outside_of_the_domain() -> None:
    op = of_pair("adopted_flat", domain=ow.Domain(dtypes=ow.FLOATING, ranks={"x": 1}))
    with pytest.raises(ValueError, match=r"adopted_flat: x must have one dimension, got \(2, 2\)"):
        op(torch.ones(2, 2), W)


@pytest.mark.parametrize("layout", ["any", "contiguous"])
def test_a_backward_takes_tensors_of_any_device_beside_what_is_kept_on_the_cpu(layout: Any) -> None:
    """It stood in the way on a GPU, where the reference's gradient ran then, without a word."""
    op = of_pair(f"adopted_elsewhere_{layout}", domain=ow.Domain(dtypes=ow.FLOATING, layout=layout, broadcast=True))
    there = {n: torch.ones(3, device="meta") for n in op.backward.signature.names if n.startswith(("grad", "x", "w"))}
    arguments = {**there, adopted.KEPT: adopted.nothing()}
    (kernel,) = [k for k in op.backward.kernels if k.device == "cuda"]
    assert kernel.domain.refuses(arguments) is None
    assert "is on" in str(kernel.domain.refuses({**arguments, "w": torch.ones(3)}))


def test_what_is_kept_lives_as_long_as_its_gradient_may_be_wanted() -> None:
    op = of_function()
    gc.collect()
    before = len(adopted._alive)
    x = X.clone().requires_grad_()
    first, second = op(x, W), op(x, W)
    assert len(adopted._alive) == before + 2
    first[1].backward(retain_graph=True)
    first[1].backward()
    if native.available() is None:  # Python's record holds it as long as the results
        assert len(adopted._alive) == before + 1  # as in PyTorch's own graphs, it goes with the second backward
    del first, second
    gc.collect()
    assert len(adopted._alive) == before
    for _ in range(100):
        op(x, W)
    gc.collect()
    assert len(adopted._alive) == before


def test_threads_and_checkpoints_get_what_is_theirs() -> None:
    op, found = of_function(), []

    def work(k: int) -> None:
        for _ in range(20):
            x = torch.full((2,), float(k), requires_grad=True)
            op(x, W)[0].sum().backward()
            found.append(x.grad is not None and torch.equal(x.grad, 2 * W))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 80
    x = X.clone().requires_grad_()
    checkpoint(lambda x: op(x, W)[0], x, use_reentrant=False).sum().backward()
    assert torch.equal(x.grad, 2 * W)  # type: ignore[arg-type]
    x = X.clone().requires_grad_()
    calls.clear()
    with torch.autograd.graph.save_on_cpu():  # which hands back copies: what hung on the tensor is lost
        out = op(x, W)
    out[0].sum().backward()
    assert torch.equal(x.grad, 2 * W)  # type: ignore[arg-type]


def test_a_written_result_is_noticed_as_autograd_notices_it() -> None:
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            out = x.exp()
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return grad * ctx.saved_tensors[0]

    def plain_exp(x: Tensor) -> Tensor:
        return x.exp()

    op = ow.adopt(Exp, reference=plain_exp, name="adopted_exp")
    x = X.clone().requires_grad_()
    out = op(x)
    assert torch.autograd.grad(out.sum(), x, retain_graph=True)[0].tolist() == out.tolist()
    with torch.no_grad():
        out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_function_that_returns_its_argument_gives_memory_of_its_own() -> None:
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return grad

    def same(x: Tensor) -> Tensor:
        return x.clone()

    op = ow.adopt(Same, reference=same, name="adopted_same")
    x = X.clone().requires_grad_()
    out = op(x)
    assert out.data_ptr() != x.data_ptr()
    out.sum().backward()
    assert torch.equal(x.grad, torch.ones(2))  # type: ignore[arg-type]


def test_an_operators_reference_and_samples_can_be_taken() -> None:
    op = ow.adopt(lambda x: x**3, reference=ow.cube)
    assert (op.name, len(op.spec.samples)) == ("cube_adopted", len(ow.cube.spec.samples))
    assert op(torch.tensor([2.0])).item() == 8.0
    assert ow.cube.kernels != op.kernels


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ow.adopt(3, reference=plain), "what is adopted must be a function"),
        (lambda: ow.adopt(ow.cube, reference=plain), "cube is an operator of opwright's already"),
        (lambda: ow.adopt(Both, reference=plain), "what is adopted must be a function"),
        (lambda: ow.adopt(Old, reference=plain, saves=["i"]), "saves is about a backward function, and there is none"),
        (lambda: of_pair_with(takes=["grad_scald"]), "takes names 'grad_scald'; did you mean grad_scaled?"),
        (lambda: of_pair_with(gives=["w"]), "gives leaves out 'x'"),
        (lambda: of_pair_with(gives=["w", "x", "by"]), "gives names 'by'"),
        (lambda: of_pair_with(saves=["x"]), "saves names 'x', which stands for something else already"),
        (lambda: ow.adopt(Old, reference=THREE, name="adopted_bad"), "a reference is a plain function, got int"),
        (lambda: of_pair("adopted_bad", device="gpu"), "a kernel is for a kind of device"),
    ],
)
def test_what_cannot_be_adopted_is_refused(make: Any, said: str) -> None:
    before = len(registry.operators())
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        make()
    assert len(registry.operators()) == before  # there is no half of an operator


def of_pair_with(**changed: Any) -> Any:
    said = {"saves": ["product"], "takes": None, "gives": None, **changed}
    return ow.adopt(old_forward, backward=old_backward, reference=plain, name="adopted_wrong", **said)


def test_results_of_another_number_are_told_by_name() -> None:
    op = ow.adopt(old_forward, backward=old_backward, reference=plain, name="adopted_short")
    with pytest.raises(TypeError, match="adopted_short: what was adopted returned 3 results; it must return 2 tensors"):
        op(X, W)
    op = ow.adopt(lambda x, w, by: x * w, reference=plain, name="adopted_one")
    with pytest.raises(
        TypeError, match="adopted_one: what was adopted returned Tensor; its reference returns 2 tensors"
    ):
        op(X, W)


class Lost(torch.autograd.Function):
    """Its gradient is made of what is no longer a function of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        ctx.save_for_backward(s)
        return 2 * s

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (s,) = ctx.saved_tensors
        return 2 * grad * s * (1 - s)


class Once(Lost):
    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator,unused-ignore]
    def backward(ctx: Any, grad: Tensor) -> Any:
        (s,) = ctx.saved_tensors
        return 2 * grad * s * (1 - s)


class Wrong(Lost):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (s,) = ctx.saved_tensors
        return 2 * grad * s


class Right(Lost):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 2 * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        s = torch.sigmoid(ctx.saved_tensors[0])
        return 2 * grad * s * (1 - s)


def gate(x: Tensor) -> Tensor:
    return 2 * torch.sigmoid(x)


@pytest.mark.parametrize(
    ("function", "property", "said"),
    [
        (Lost, "adopted", "its own gradient has no history"),
        (Once, "adopted", "its own gradient has no history"),
        (Wrong, "gradients", "wrong"),
        (Right, None, ""),
    ],
)
def test_the_check_says_what_holds(
    function: type, property: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = ow.adopt(function, reference=gate, name=f"adopted_{function.__name__.lower()}")
    monkeypatch.setenv("OPWRIGHT_CHECK_HERE", "1")
    report = ow.check(op, only=["gradients", "adopted"])
    failed = {f.property: f.message for f in report.failures}
    assert said in failed.get(property or "", "")
    assert bool(failed) == (property is not None)
    assert "gradients" not in failed or property == "gradients"


@pytest.mark.slow
def test_what_crashes_is_found_by_the_check_and_the_process_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "crash.py"
    script.write_text(
        "import ctypes, torch, opwright as ow\n"
        "def crash(x):\n    return ctypes.string_at(8) and x\n"
        "def plain(x: torch.Tensor) -> torch.Tensor:\n    return x + 1\n"
        "crashing = ow.adopt(crash, reference=plain, name='crashing')\n"
        "if __name__ == '__main__':\n"
        "    print(ow.check(crashing, only=['forward']).failures[0].message)\n    print('goes on')\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=240)
    assert "crash" in done.stdout or "signal" in done.stdout or "ended" in done.stdout, done.stderr
    assert "goes on" in done.stdout
