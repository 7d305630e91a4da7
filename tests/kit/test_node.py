"""Autograd of opaque operators has the semantics of PyTorch's own, recorded in C++ and in Python alike."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import opwright as ow
from opwright.kit import native, node, register

Define = Callable[..., ow.Op[..., Any]]
_counter = itertools.count()


@pytest.fixture(params=["node", "python"])
def define(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Define:
    """Defines an opaque operator whose calls are recorded in C++, or in Python."""
    if request.param == "python":
        monkeypatch.setattr(native, "available", lambda: "this test forbids it")
    elif native.available() is not None:
        pytest.skip(f"the node: {native.available()}")

    def make(function: Callable[..., Any], *warm: Any, **options: Any) -> ow.Op[..., Any]:
        op: ow.Op[..., Any] = ow.op(namespace=f"node_{next(_counter)}", opaque=True, **options)(function)
        if warm:  # at its first call C++ takes over
            op(*warm)
            assert register.entry_of(op.overload.name()).native == (request.param == "node")
        return op

    return make


def product(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def squash(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


def a_product(define: Define, asked: list[list[bool]] | None = None) -> ow.Op[..., Any]:
    op = define(product, torch.ones(1), torch.ones(1))

    @op.gradient
    def _(grad: Tensor, x: Tensor, y: Tensor, wanted: list[bool]) -> Any:
        if asked is not None:
            asked.append(wanted)
        return (grad * y if wanted[0] else None), (grad * x if wanted[1] else None)

    return op


def a_squash(define: Define) -> ow.Op[..., Any]:
    op = define(squash, torch.ones(1))

    @op.gradient
    def _(grad: Tensor, result: Tensor) -> Tensor:
        return grad * result * (1 - result)

    return op


def pair() -> tuple[Tensor, Tensor]:
    return torch.rand(3, dtype=torch.float64).requires_grad_(), torch.rand(3, dtype=torch.float64).requires_grad_()


def test_the_graph_holds_one_node_named_after_the_operator(define: Define) -> None:
    x, y = pair()
    out = a_product(define)(x, y)
    assert out.grad_fn is not None
    assert out.grad_fn.name() in ("ProductBackward", "_NodeBackward")
    assert len(out.grad_fn.next_functions) == 2 or out.grad_fn.name() == "_NodeBackward"


def test_only_gradients_that_are_asked_for_are_computed(define: Define) -> None:
    asked: list[list[bool]] = []
    op = a_product(define, asked)
    x, y = pair()
    torch.autograd.grad(op(x, y).sum(), x)
    op(x.detach(), y).sum().backward()
    op(x, y).sum().backward(inputs=[y])
    if native.available() is None:
        assert asked == [[True, False], [False, True], [False, True]]
    else:  # torch.autograd.Function knows what requires a gradient, not what this backward is asked for
        assert asked == [[True, True], [False, True], [True, True]]


def test_saved_tensor_hooks_see_what_is_kept(define: Define) -> None:
    packed: list[Tensor] = []
    op, squashed = a_product(define), a_squash(define)

    def pack(t: Tensor) -> int:
        packed.append(t.detach().clone())
        return len(packed) - 1

    x, y = pair()
    with saved_tensors_hooks(pack, lambda i: packed[i]):
        out = squashed(op(x, y))
    assert [p.tolist() for p in packed] == [x.tolist(), y.tolist(), out.tolist()]
    got = torch.autograd.grad(out.sum(), (x, y))
    expected = torch.autograd.grad(torch.sigmoid(x * y).sum(), (x, y))
    torch.testing.assert_close(got, expected)
    with torch.autograd.graph.save_on_cpu():
        out = op(x, y)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), (x, y)), (y.detach(), x.detach()))


def test_what_no_wanted_gradient_reads_is_not_kept(define: Define) -> None:
    kept: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        kept.append(t)
        return t

    op = define(product, torch.ones(1), torch.ones(1))

    @op.gradient(needs={"x": ["y"], "y": ["x"]})
    def _(grad: Tensor, x: Tensor, y: Tensor, wanted: list[bool]) -> Any:
        return (grad * y if wanted[0] else None), (grad * x if wanted[1] else None)

    x, y = pair()
    for args, expected in (((x, y.detach()), [y]), ((x.detach(), y), [x]), ((x, y), [x, y])):
        kept.clear()
        with saved_tensors_hooks(pack, lambda t: t):
            out = op(*args)
        assert [k.tolist() for k in kept] == [e.tolist() for e in expected]
        watched = [t for t in args if t.requires_grad]
        found = torch.autograd.grad(out.sum(), watched, create_graph=True)
        torch.testing.assert_close(found, torch.autograd.grad((args[0] * args[1]).sum(), watched))
    wrong = define(product, torch.ones(1), torch.ones(1))
    wrong.gradient(needs={"x": [], "y": []})(lambda grad, x, y: (grad * y, grad * x))
    assert torch.autograd.grad(wrong(x, y.detach()).sum(), x)[0].isnan().all()  # loud, where memory would be anything
    with pytest.raises(TypeError, match="product: needs must name the inputs that have gradients"):
        wrong.gradient(needs={"x": []})(lambda grad, x: (grad, grad))
    with pytest.raises(TypeError, match="product: needs names 'y', which is no tensor that its gradient saves"):
        wrong.gradient(needs={"x": ["y"], "y": []})(lambda grad, x: (grad, grad))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_recompute(define: Define, reentrant: bool) -> None:
    op, squashed = a_product(define), a_squash(define)
    x, y = pair()
    out = checkpoint(lambda x, y: squashed(op(x, y)), x, y, use_reentrant=reentrant)
    got = torch.autograd.grad(out.sum(), (x, y)) if not reentrant else None
    if reentrant:
        out.sum().backward()
        got = (x.grad, y.grad)
    torch.testing.assert_close(got, torch.autograd.grad(torch.sigmoid(x * y).sum(), (x, y)))


def test_the_graph_is_freed_unless_it_is_retained(define: Define) -> None:
    x, y = pair()
    for op, args in ((a_product(define), (x, y)), (a_squash(define), (x,))):
        out = op(*args).sum()
        first = torch.autograd.grad(out, args, retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(out, args), first)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(out, args)


def test_derivatives_of_every_order(define: Define) -> None:
    def third(op: Any) -> Tensor:
        x, y = torch.tensor(0.3, dtype=torch.float64, requires_grad=True), torch.tensor(0.7, dtype=torch.float64)
        value = op(x)
        for _ in range(3):
            (value,) = torch.autograd.grad(value, x, create_graph=True)
        return value * y

    torch.testing.assert_close(third(a_squash(define)), third(torch.sigmoid))
    x, y = pair()
    op = a_product(define)
    assert torch.autograd.gradcheck(op, (x, y), check_batched_grad=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(op, (x, y), check_batched_grad=True, check_fwd_over_rev=True)


def test_anomaly_mode_names_the_line_of_the_call(define: Define) -> None:
    op = define(squash, torch.ones(1))

    @op.gradient
    def _(grad: Tensor, result: Tensor) -> Tensor:
        return grad * float("nan")

    x = torch.ones(2, requires_grad=True)
    with warnings.catch_warnings(record=True) as said, torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("always")
        out = op(x)  # the line that anomaly mode names
        with pytest.raises(RuntimeError, match="returned nan values in its"):
            out.sum().backward()
    assert any("the line that anomaly mode names" in str(w.message) for w in said)


def test_what_was_changed_in_place_is_noticed(define: Define) -> None:
    op, squashed = a_product(define), a_squash(define)
    x, y = pair()
    inner = x * 1
    out = op(inner, y)
    inner.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    out = squashed(x)
    out.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    base = x * 1
    out = op(base[:2], y[:2])
    base.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_writing_to_a_result_that_is_not_kept_is_right(define: Define) -> None:
    x, y = pair()
    op = a_product(define)
    out = op(x, y)
    out[1:].mul_(3)
    got = torch.autograd.grad(out.sum(), x)[0]
    torch.testing.assert_close(got, y.detach() * torch.tensor([1.0, 3.0, 3.0], dtype=torch.float64))
    plain = op(x.detach(), y.detach())
    plain.add_(x)  # a result without history takes one up
    assert plain.requires_grad


def test_hooks_and_retained_gradients(define: Define) -> None:
    op = a_product(define)
    x, y = pair()
    out = op(x, y)
    seen: list[str] = []
    out.retain_grad()
    out.register_hook(lambda g: seen.append("tensor"))
    assert out.grad_fn is not None
    out.grad_fn.register_prehook(lambda grads: seen.append("before"))  # type: ignore[arg-type]
    out.grad_fn.register_hook(lambda given, came: seen.append("after"))
    x.register_post_accumulate_grad_hook(lambda t: seen.append("accumulated"))
    out.sum().backward()
    assert seen == ["tensor", "before", "after", "accumulated"]
    assert out.grad is not None


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
    if native.available() is not None:
        pytest.skip("torch.autograd.Function itself makes a view of it")
    op = define(squash, torch.ones(1))
    op.kernel("cpu")(lambda x: x)
    with pytest.raises(TypeError, match="squash: its kernel returned one of its arguments"):
        op(torch.ones(2, requires_grad=True))


def test_defining_it_again_replaces_its_gradient(define: Define) -> None:
    name = f"again_{next(_counter)}"

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


def test_data_parallel_hooks_fire(define: Define, tmp_path: Path) -> None:
    if not torch.distributed.is_available():
        pytest.skip("this torch is built without torch.distributed")
    op = a_product(define)

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((3,), 2.0))
            self.bias = torch.nn.Parameter(torch.full((3,), 3.0))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = op(x, self.weight) + self.bias
            return out

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        module = torch.nn.parallel.DistributedDataParallel(Scaled())
        x = torch.rand(3)
        for _ in range(3):
            module.zero_grad()
            module(x).sum().backward()
        torch.testing.assert_close(module.module.weight.grad, x)
    finally:
        torch.distributed.destroy_process_group()


def test_explain_and_doctor_say_who_records(define: Define) -> None:
    op = a_product(define)
    x, y = pair()
    said = str(ow.explain(op, x, y))
    why = node.why_not(op)
    assert ("recorded in C++" if why is None else f"recorded in Python, since {why}") in said
