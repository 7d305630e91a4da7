"""The first call computes what later ones do, and is asked the same questions."""

from __future__ import annotations

import itertools
import re
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import opwright as ow
from opwright.kit import private
from opwright.kit.spec.probe import BadReference

_numbers = itertools.count()


def define(function: Callable[..., Any], **options: Any) -> ow.Op[..., Any]:
    return ow.op(name=f"{function.__name__}{next(_numbers)}", namespace="first_calls", **options)(function)


def pinv(x: Tensor) -> Tensor:
    return torch.linalg.pinv(x)  # type: ignore[no-any-return]


def vecdot(x: Tensor) -> Tensor:
    return torch.linalg.vecdot(x, x * 2j)  # type: ignore[no-any-return]


@pytest.mark.parametrize("opaque", [None, True], ids=["transparent", "opaque"])
@pytest.mark.parametrize("plain", [pinv, vecdot], ids=lambda f: f.__name__)
def test_lazily_conjugated_numbers_are_right_in_the_first_call(plain: Callable[..., Any], opaque: bool | None) -> None:
    op = define(plain, opaque=opaque)
    x = torch.randn(4, 3, dtype=torch.complex64, requires_grad=True)
    (expected,) = torch.autograd.grad(plain(x).abs().sum(), x)
    for _round in range(2):
        torch.testing.assert_close(op(x), plain(x))
        torch.testing.assert_close(torch.autograd.grad(op(x).abs().sum(), x)[0], expected)


def test_autocast_sees_the_first_call() -> None:
    def product(x: Tensor) -> Tensor:
        return torch.linalg.multi_dot([x, x, x])  # type: ignore[no-any-return]

    op = define(product)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _round in range(2):
            assert op(torch.eye(3)).dtype == product(torch.eye(3)).dtype


def test_an_alias_is_refused_in_the_first_call() -> None:
    def dropout(x: Tensor) -> Tensor:
        return F.dropout(x, 0.0, True)

    for opaque in (None, True):
        op = define(dropout, opaque=opaque)
        seen = []
        for _round in range(2):
            try:
                seen.append(op(torch.ones(3)).tolist())
            except BadReference as e:
                seen.append(str(e))
        assert seen[0] == seen[1]


@pytest.mark.parametrize("opaque", [None, True], ids=["transparent", "opaque"])
def test_writes_that_nobody_counts_are_seen(opaque: bool | None) -> None:
    def batch_norm(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return F.batch_norm(x, mean, var, training=True)

    op = define(batch_norm, opaque=opaque)
    for _round in range(2):
        with pytest.raises(BadReference, match=r"writes to its argument 'mean'; declare it with @ow\.op\(mutates="):
            op(torch.randn(4, 3), torch.zeros(3), torch.ones(3))


def test_another_threads_writes_beside_an_argument_are_not_the_references() -> None:
    op = define(_twice, opaque=True)
    memory = torch.ones(2, 1000)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            memory[1].add_(1)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        for _round in range(300):
            assert op(memory[0])[0] == 2
    finally:
        stop.set()
        thread.join()


def _twice(x: Tensor) -> Tensor:
    return x * 2


def test_a_checkpoint_may_hold_the_very_first_call() -> None:
    def affine(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return x * w + (0 if b is None else b)

    op = define(affine, opaque=True)

    @op.gradient
    def _(grad: Tensor, b: Tensor | None, w: Tensor, x: Tensor) -> Any:
        return grad * w, grad * x, None if b is None else grad

    x, w, b = (torch.randn(3, requires_grad=True) for _round in range(3))
    checkpoint(lambda x: op(x, w, b), x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad, w)
    torch.testing.assert_close(w.grad, x)


def test_shapes_of_a_list_are_kept_alone() -> None:
    def join(xs: list[Tensor]) -> Tensor:
        return torch.cat(xs)

    op = define(join, opaque=True)

    @op.gradient
    def _(grad: Tensor, xs: ow.Like) -> Any:
        assert all(t.untyped_storage().nbytes() <= 4 for t in xs)
        return list(grad.split([len(t) for t in xs]))

    for _round in range(2):
        xs = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
        op(xs).sum().backward()
        assert [t.grad.shape[0] for t in xs if t.grad is not None] == [2, 3]


def test_what_only_updates_returns_none_always() -> None:
    def bump(x: Tensor) -> None:
        x.add_(1)

    op = define(bump, opaque=True, mutates=("x",))
    x = torch.zeros(2)
    assert [op(x) for _round in range(3)] == [None] * 3
    assert x.tolist() == [3.0, 3.0]


def test_a_kernel_may_return_its_one_result_in_a_tuple() -> None:
    def one(x: Tensor) -> tuple[Tensor]:
        return (x * 2,)

    op = define(one)
    op.kernel("cpu")(lambda x: (x * 2,))
    op.backward.kernel("cpu")(lambda grad, x, wanted=None: (grad * 2,))
    for _round in range(3):
        x = torch.ones(2, requires_grad=True)
        (out,) = op(x)
        out.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2.0, 2.0]


def test_a_kernel_that_returns_too_little_is_named() -> None:
    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    op = define(two)

    @op.kernel("cpu")
    def half(x: Tensor) -> Any:
        return (x * 2,)

    with pytest.raises(
        TypeError, match=r"two\d+: its kernel half returned tuple of Tensor; it must return the 2 results"
    ):
        op(torch.ones(2))


def test_parameters_that_a_reference_captures_are_refused_where_they_would_get_no_gradient() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    layer = torch.nn.Linear(2, 2)

    def helper(x: Tensor) -> Tensor:
        return x * weight

    def scaled(x: Tensor) -> Tensor:
        return helper(x)

    def layered(x: Tensor) -> Tensor:
        return layer(x)  # type: ignore[no-any-return]

    for plain, name in ((scaled, "weight"), (layered, "layer")):
        define(plain)(torch.ones(2)).sum().backward()  # seen through, it trains what it captures
        op = define(plain, opaque=True)
        for _round in range(2):
            with pytest.raises(BadReference, match=f"reads '{name}' from the code around it.*pass it as an argument"):
                op(torch.ones(2, requires_grad=True))


def test_captured_parameters_are_found_where_they_are_kept() -> None:
    class Holder:
        def __init__(self) -> None:
            self.weight = torch.nn.Parameter(torch.ones(2))
            self.unread = torch.nn.Parameter(torch.ones(2))
            self.eps = 1.0

        def scale(self, x: Tensor) -> Tensor:
            return x * self.weight

    holder, kept = Holder(), {"w": [torch.nn.Parameter(torch.ones(2))]}
    settings = types.SimpleNamespace(layer=torch.nn.Linear(2, 2), eps=1.0)

    def in_a_dict(x: Tensor) -> Tensor:
        return x * kept["w"][0]

    def in_an_object(x: Tensor) -> Tensor:
        return x * holder.weight

    def in_a_method(x: Tensor) -> Tensor:
        return holder.scale(x)

    def beside(x: Tensor) -> Tensor:
        return x * holder.eps * settings.eps  # type: ignore[no-any-return]

    for plain, name in ((in_a_dict, "kept['w'][0]"), (in_an_object, "holder.weight"), (in_a_method, "holder.weight")):
        with pytest.raises(BadReference, match=re.escape(f"reads {name!r} from the code around it")):
            define(plain, opaque=True)(torch.ones(2, requires_grad=True))
    define(beside, opaque=True)(torch.ones(2, requires_grad=True)).sum().backward()


def test_captured_parameters_are_found_when_the_form_that_saves_runs_first() -> None:
    weight = torch.nn.Parameter(torch.ones(2))

    def plain(x: Tensor) -> Tensor:
        return x * weight

    def detached(x: Tensor) -> Tensor:
        return x * weight.numel() / 2

    for reference, saving in ((plain, lambda x: (x.clone(), x.clone())), (detached, lambda x: (x * weight, x.clone()))):
        op = define(reference, opaque=True)
        op.saving("kept")(saving)
        op.gradient(lambda grad, kept: grad * kept)
        for _round in range(2):
            with pytest.raises(BadReference, match="reads 'weight' from the code around it"):
                op(torch.ones(2, requires_grad=True))


def test_no_zeros_where_pytorch_has_no_derivative() -> None:
    def airy(x: Tensor) -> Tensor:
        return torch.special.airy_ai(x)  # type: ignore[no-any-return]

    def unused(x: Tensor, y: Tensor) -> Tensor:
        return y * 2

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        define(airy, opaque=True)(x).sum().backward()
    define(unused, opaque=True)(x, torch.ones(2)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0]


def test_draws_from_a_generator_of_ones_own_are_seen() -> None:
    generator = torch.Generator()

    def noisy(x: Tensor) -> Tensor:
        return x + torch.rand(2, generator=generator)  # type: ignore[no-any-return]

    with pytest.raises(BadReference, match=r"draws random numbers \(aten\.rand\.generator\)"):
        define(noisy)(torch.ones(2))


def test_an_operator_without_tensors_runs_where_it_is_told() -> None:
    def ramp(n: int, *, device: torch.device = torch.device("cpu")) -> Tensor:
        return torch.arange(n, device=device)

    op = define(ramp)
    ran: list[int] = []

    @op.kernel("cpu")
    def _(n: int, device: torch.device) -> Tensor:
        ran.append(n)
        return torch.arange(n)

    assert op(3, device="meta").device.type == "meta"
    assert ran == []
    assert op(3).device.type == "cpu"
    assert ran == [3]


def test_threads_that_ask_for_a_gradient_first_get_one_operator() -> None:
    for _round in range(20):
        op = define(_twice, opaque=True)
        found: list[Any] = []
        start = threading.Barrier(8)

        def ask(op: Any = op, found: list[Any] = found, start: threading.Barrier = start) -> None:
            start.wait()
            found.append(op.backward)

        threads = [threading.Thread(target=ask) for _round in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(f) for f in found}) == 1
        assert getattr(torch.ops.first_calls, f"{op.name}_backward").default is found[0].overload


def test_a_gradient_is_not_called_before_all_of_it_is_in_the_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    op = define(_twice, opaque=True)
    op(torch.ones(2))
    implement, threads, got = private.implement, list[threading.Thread](), list[Any]()

    def call() -> None:
        try:
            got.append(op.backward(torch.ones(2), torch.ones(2))[0].tolist())
        except Exception as e:
            got.append(e)

    def interrupted(*args: Any) -> None:
        if not threads:
            threads.append(threading.Thread(target=call))
            threads[0].start()
            threads[0].join(0.5)  # it waits until this one is done
        implement(*args)

    monkeypatch.setattr(private, "implement", interrupted)
    assert op.backward(torch.ones(2), torch.ones(2))[0].tolist() == [2, 2]
    threads[0].join()
    assert got == [[2, 2]]


def test_what_a_reference_captures_is_refused_under_compile_too() -> None:
    layer = torch.nn.Linear(2, 2)

    @ow.op(name="captures_compiled", opaque=True)
    def op(x: Tensor) -> Tensor:
        return layer(x)  # type: ignore[no-any-return]

    with pytest.raises(BadReference, match="reads 'layer' from the code around it"):
        torch.compile(lambda x: op(x).sum(), backend="aot_eager")(torch.ones(2))
