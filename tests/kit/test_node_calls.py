"""Calls of every kind are recorded alike in C++ and in Python: lists, options, in place, on threads, compiled."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.dispatch import native, node
from tests.kit.recording import Define, a_product, a_squash, counter, pair, product, squash


def test_lists_options_and_several_outputs(define: Define) -> None:
    def mixed(
        x: Tensor, items: list[Tensor], maybe: Tensor | None = None, *, n: int = 2, how: str = "a"
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        total = x * n
        for item in items:
            total = total + item * item
        if maybe is not None:
            total = total * maybe
        return total, [item * x for item in items], x.detach().long()

    def run(op: Any, maybe: Tensor | None, which: int) -> list[Tensor | None]:
        torch.manual_seed(0)
        x = torch.rand(3, dtype=torch.float64, requires_grad=True)
        items = [torch.rand(3, dtype=torch.float64, requires_grad=i != 1) for i in range(3)]
        total, scaled, whole = op(x, items, maybe, n=3)
        assert not whole.requires_grad
        watched = [x, items[0], items[2], *([maybe] if maybe is not None else [])]
        loss = total.sum() if which == 0 else scaled[which].sum() * 2
        return list(torch.autograd.grad(loss, watched, allow_unused=True))

    op = define(mixed, torch.ones(3), [torch.ones(3)])
    maybe = torch.rand(3, dtype=torch.float64, requires_grad=True)
    for given in (None, maybe):
        for which in (0, 1, 2):
            for got, expected in zip(run(op, given, which), run(mixed, given, which), strict=True):
                torch.testing.assert_close(
                    torch.zeros(()).double().expand(3) if got is None else got,
                    torch.zeros(()).double().expand(3) if expected is None else expected,
                )


def test_a_gradient_of_the_wrong_shape_names_the_operator(define: Define) -> None:
    op = define(product, torch.ones(1), torch.ones(1))
    op.gradient(lambda grad, x, y: (grad.sum(), grad * x))
    x, y = pair()
    with pytest.raises(ValueError, match=r"product: its gradient returned shape \(\) for x of shape \(3,\)"):
        op(x, y).sum().backward()

    def listed(items: list[Tensor]) -> Tensor:
        return items[0] * items[1]

    op = define(listed, [torch.ones(1), torch.ones(1)])
    op.gradient(lambda grad, items: [grad])
    with pytest.raises(ValueError, match="listed: its gradient returned 1 gradients for the 2 of items"):
        op([x, y]).sum().backward()


def test_tangents_go_through_the_reference(define: Define) -> None:
    op = a_product(define)
    x, y = pair()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        out = op(dual, y)
        tangent = torch.autograd.forward_ad.unpack_dual(out).tangent
        torch.testing.assert_close(tangent, y)
        (gradient,) = torch.autograd.grad(out.sum(), y, create_graph=True)
        torch.testing.assert_close(gradient, x)


def test_modes_in_which_nothing_is_recorded(define: Define) -> None:
    op = a_product(define)
    x, y = pair()
    with torch.no_grad():
        assert not op(x, y).requires_grad
    with torch.inference_mode():
        out = op(x, y)
        assert out.is_inference()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        op(out, y)
    assert not op(x.detach(), y.detach()).requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(op(x, y), x * y)


def test_a_kernel_that_returns_its_argument_is_refused(define: Define) -> None:
    op = define(squash, torch.ones(1))
    op.kernel("cpu")(lambda x: x)
    with pytest.raises(TypeError, match="squash: its kernel returned one of its arguments"):
        op(torch.ones(2, requires_grad=True))


def test_defining_it_again_replaces_its_gradient(define: Define) -> None:
    name = f"again_{next(counter)}"

    def cell(factor: float, declared: bool) -> ow.Op[..., Any]:
        scope: dict[str, Any] = {"Tensor": Tensor, "__name__": __name__}
        exec(f"def cell(x: Tensor) -> Tensor:\n    return x * {factor}", scope)
        op: ow.Op[..., Any] = ow.op(namespace=name, opaque=True)(scope["cell"])
        if declared:
            op.gradient(lambda grad: grad * (factor + 10))
        return op

    x = torch.ones(2, requires_grad=True)
    for factor, declared, expected in ((2.0, False, 2.0), (3.0, False, 3.0), (4.0, True, 14.0), (5.0, False, 5.0)):
        op = cell(factor, declared)
        for _ in range(2):
            out = op(x)
            assert out.tolist() == [factor] * 2
            assert torch.autograd.grad(out.sum(), x)[0].tolist() == [expected] * 2


def test_an_in_place_form_with_a_kernel_keeps_what_it_overwrites(define: Define) -> None:
    op = a_product(define)
    written = ow.in_place(op)
    ran: list[str] = []

    @written.kernel("cpu")
    def _(x: Tensor, y: Tensor) -> None:
        ran.append("kernel")
        x.detach().copy_(x.detach() * y)

    def run(write: Any) -> list[Tensor]:
        x, y = pair()
        inner = x * 1
        write(inner[1:], y[1:])
        return list(torch.autograd.grad((inner**2).sum(), (x, y)))

    torch.manual_seed(0)
    run(written)
    ran.clear()
    torch.manual_seed(0)
    got = run(written)
    torch.manual_seed(0)
    torch.testing.assert_close(got, run(lambda x, y: x.mul_(y)))
    x, y = pair()
    plain = torch.ones(3, dtype=torch.float64)
    version = plain._version
    assert written(plain, y.detach()) is plain
    assert plain._version > version
    with torch.inference_mode():
        written(plain, y.detach())
    assert plain._version > version + 1
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        written(x, y)
    kept = torch.exp(x)  # whose gradient needs its result
    with torch.no_grad():
        written(kept, y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()


def test_modules_copy_and_pickle(define: Define) -> None:
    module = torch.nn.Sequential(ow.nn.Linear(2, 3), ow.nn.Sigmoid())
    x = torch.rand(4, 2)
    module(x).sum().backward()
    restored = pickle.loads(pickle.dumps(copy.deepcopy(module)))
    torch.testing.assert_close(restored(x), module(x))


def test_threads_share_a_graph(define: Define) -> None:
    op, squashed = a_product(define), a_squash(define)
    x, y = pair()
    out = squashed(op(x, y)).sum()
    expected = torch.autograd.grad(torch.sigmoid(x * y).sum(), (x, y))
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(30):
                got = torch.autograd.grad(out, (x, y), retain_graph=True)
                torch.testing.assert_close(got, expected)
                own = squashed(op(x, y)).sum()
                torch.testing.assert_close(torch.autograd.grad(own, (x, y)), expected)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_nothing_lives_longer_than_its_graph(define: Define) -> None:
    op, squashed = a_product(define), a_squash(define)
    x, y = pair()
    inner = x * 1
    dead = weakref.ref(inner)
    out = squashed(op(inner, y))
    del inner
    out.sum().backward()
    gc.collect()
    assert dead() is None  # released by the backward, though the graph's end is still here
    results = [weakref.ref(out)]
    del out
    dropped = weakref.ref(squashed(x))
    gc.collect()
    assert results[0]() is None
    assert dropped() is None
    chain = x
    for _ in range(20_000):  # a long graph is taken down without recursion
        chain = squashed(chain)
    del chain


@pytest.mark.slow
def test_compiled_autograd_traces_the_backward(define: Define) -> None:
    def mixed(x: Tensor, items: list[Tensor], *, a: float = 1.0) -> tuple[Tensor, Tensor]:
        return x * a + items[0] * items[1], items[0] * 2

    op, squashed = define(mixed, torch.ones(1), [torch.ones(1), torch.ones(1)]), a_squash(define)

    def run(first: Any, second: Any, compiled: bool) -> list[Tensor]:
        torch.manual_seed(0)
        found = []
        for n in (3, 4, 5):
            x, y, z = (torch.rand(n, dtype=torch.float64).requires_grad_() for _ in range(3))
            out = second(first(x, [y, z], a=0.5)[0])
            if compiled:
                with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
                    out.sum().backward()
            else:
                out.sum().backward()
            found += [t.grad for t in (x, y, z) if t.grad is not None]
        return found

    torch.testing.assert_close(run(op, squashed, True), run(mixed, torch.sigmoid, False))


DATA_PARALLEL = """
import os, sys
import torch
from torch import Tensor
import opwright as ow
from opwright.kit.dispatch import native, registry

way, store = sys.argv[1:]
if way == "python":
    native.available = lambda: "this test forbids it"

@ow.op(namespace="data_parallel", opaque=True)
def product(x: Tensor, y: Tensor) -> Tensor:
    return x * y

@product.gradient
def _(grad: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return grad * y, grad * x

class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 2.0))
        self.bias = torch.nn.Parameter(torch.full((3,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight) + self.bias

def doubled(state: object, bucket: torch.distributed.GradBucket) -> torch.futures.Future[Tensor]:
    future = torch.futures.Future()
    future.set_result(bucket.buffer() * 2)
    return future

product(torch.ones(1), torch.ones(1))
assert registry.entry_of(product.overload.name()).native == (way == "node")
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
module = torch.nn.parallel.DistributedDataParallel(Scaled())
module.register_comm_hook(None, doubled)
x = torch.rand(3)
for _ in range(3):
    module.zero_grad()
    module(x).sum().backward()
torch.testing.assert_close(module.module.weight.grad, 2 * x)
print("doubled", flush=True)
os._exit(0)  # PyTorch may wait for its own threads forever when a group is taken down
"""


@pytest.mark.parametrize("way", ["node", "python"])
def test_data_parallel_hooks_fire(way: str, tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("this torch is built without torch.distributed")
    if way == "node" and native.available() is not None:
        pytest.skip(f"the node: {native.available()}")
    command = [sys.executable, "-c", DATA_PARALLEL, way, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.splitlines()[-1:] == ["doubled"], done.stderr  # Gloo may speak first


def test_explain_and_doctor_say_who_records(define: Define) -> None:
    op = a_product(define)
    x, y = pair()
    said = str(ow.explain(op, x, y))
    why = node.why_not(op)
    assert ("recorded in C++" if why is None else f"recorded in Python, since {why}") in said


def test_kernels_run_under_gradients_of_torch_func(define: Define) -> None:
    ran: list[str] = []
    op = a_product(define)
    op.kernel("cpu")(lambda x, y: ran.append("forward") or x * y)  # type: ignore[func-returns-value]

    @op.backward.kernel("cpu")
    def _(grad: Tensor, x: Tensor, y: Tensor, wanted: list[bool] | None = None) -> Any:
        ran.append("backward")
        return grad * y, grad * x

    x, y = (t.detach() for t in pair())
    op(x, y)
    op.backward(x, x, y)
    ran.clear()
    first = torch.func.grad(lambda x: op(x, y).square().sum())(x)
    torch.testing.assert_close(first, 2 * x * y * y)
    second = torch.func.grad(lambda y: torch.func.grad(lambda x: op(x, y).square().sum())(x).sum())(y)
    torch.testing.assert_close(second, 4 * x * y)
    assert bool(ran) == (native.available() is None)
    # Other transforms take the reference apart, and mixtures are right too.
    jacobian = torch.func.jacrev(lambda x: op(x, y))(x)
    torch.testing.assert_close(jacobian, torch.diag(y))
    hessian = torch.func.hessian(lambda x: op(x, y).square().sum())(x)
    torch.testing.assert_close(hessian, torch.diag(2 * y * y))
