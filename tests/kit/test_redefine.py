"""Defining an operator again replaces it, and takes nothing away from what may be running."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit import locks
from opwright.kit.dispatch import native, node, registry


def define(factor: float) -> ow.Op[..., Any]:
    """A notebook cell run again, edited."""
    scope: dict[str, Any] = {"Tensor": Tensor, "__name__": __name__}
    exec(f"def cell(x: Tensor) -> Tensor:\n    return x * {factor}", scope)
    return ow.op(namespace="again")(scope["cell"])


def test_the_same_schema_swaps_the_reference_behind_the_name() -> None:
    first = define(2.0)
    overload = first.overload
    second = define(3.0)
    assert second.overload is overload
    assert second(torch.ones(1)).item() == 3.0
    assert torch.ops.again.cell(torch.ones(1)).item() == 3.0
    x = torch.ones(1, requires_grad=True)
    torch.ops.again.cell(x).backward()
    assert x.grad is not None
    assert x.grad.item() == 3.0


def test_a_changed_schema_takes_the_name_and_leaves_old_graphs_alone() -> None:
    def first() -> ow.Op[..., Any]:
        @ow.op(namespace="again", opaque=True)
        def grown(x: Tensor) -> Tensor:
            return x + 1

        return grown

    def second() -> ow.Op[..., Any]:
        @ow.op(namespace="again", opaque=True)
        def grown(x: Tensor, by: float = 10.0) -> Tensor:
            return x + by

        return grown

    first()
    compiled = torch.compile(lambda x: torch.ops.again.grown(x), backend="aot_eager", fullgraph=True)
    old = torch.ops.again.grown.default
    assert compiled(torch.ones(1)).item() == 2.0
    grown = second()
    assert grown(torch.ones(1)).item() == 11.0
    assert torch.ops.again.grown(torch.ones(1), 5.0).item() == 6.0
    assert old(torch.ones(1)).item() == 2.0
    x = torch.ones(1, requires_grad=True)
    grown(x, 3.0).backward()
    assert x.grad is not None


def test_another_module_may_not_take_the_name() -> None:
    scope: dict[str, Any] = {"Tensor": Tensor, "__name__": "elsewhere"}
    exec("def axpby(x: Tensor) -> Tensor: return x + 1", scope)
    with pytest.raises(ValueError, match=r"axpby: opwright::axpby is defined already, in .*ops/axpby/op\.py"):
        ow.op(namespace="opwright")(scope["axpby"])
    exec("def add(x: Tensor) -> Tensor: return x + 1", scope)
    with pytest.raises(ValueError, match="add: aten::add belongs to another library"):
        ow.op(namespace="aten")(scope["add"])


def test_operators_are_replaced_while_others_call_them() -> None:
    define(1.0)
    stop = threading.Event()
    seen: set[float] = set()
    errors: list[BaseException] = []

    def call() -> None:
        try:
            while not stop.is_set():
                x = torch.ones(1, requires_grad=True)
                out = torch.ops.again.cell(x)
                out.backward()
                seen.add(out.item())
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(200):
        define(float(i % 7))
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert seen <= {float(i) for i in range(7)}


def steep(factor: float) -> ow.Op[..., Any]:
    """An operator that says of itself how steep it is."""
    scope: dict[str, Any] = {"Tensor": Tensor, "__name__": __name__}
    exec(f"def steep(x: Tensor) -> Tensor:\n    return x * 2\ndef gradient(grad): return grad * {factor}", scope)
    op: ow.Op[..., Any] = ow.op(namespace="again")(scope["steep"])
    op.gradient(surrogate=True)(scope["gradient"])
    return op


def slope() -> float:
    x = torch.ones(1, requires_grad=True)
    torch.ops.again.steep(x).backward()
    assert x.grad is not None
    return float(x.grad.item())


@pytest.mark.skipif(native.available() is not None, reason="the node is not built")
@pytest.mark.parametrize("taken_over", [False, True], ids=["first", "again"])
def test_an_operator_replaced_while_the_node_reads_it_is_read_again(
    monkeypatch: pytest.MonkeyPatch, taken_over: bool
) -> None:
    steep(5.0)
    if taken_over:
        assert slope() == 5
        steep(6.0)
    plain = node._sources
    replaced: list[bool] = []

    def replace(*args: Any) -> Any:
        read = plain(*args)
        if not replaced:
            replaced.append(True)
            _ = steep(7.0).backward  # and its gradient, which asks for another look as well
        return read

    monkeypatch.setattr(node, "_sources", replace)
    slope()
    assert replaced
    assert slope() == 7


@pytest.mark.skipif(native.available() is not None, reason="the own C++ is not built")
def test_the_own_library_is_not_loaded_while_names_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who loads kernels holds the lock of loading and asks for names."""
    owned = []

    class Loading:
        def __enter__(self) -> None:
            owned.append(registry.lock._is_owned())  # type: ignore[attr-defined]

        def __exit__(self, *raised: object) -> None:
            pass

    define(1.0)
    native.available.cache_clear()
    monkeypatch.setattr(locks, "loading", Loading())
    define(2.0)
    assert owned == [False]


def test_operators_copy_and_pickle_by_name() -> None:
    assert copy.deepcopy(ow.axpby) is ow.axpby
    assert pickle.loads(pickle.dumps(ow.axpby)) is ow.axpby
    assert pickle.loads(pickle.dumps(ow.axpby.backward)) is ow.axpby.backward
    module = torch.nn.Sequential(ow.nn.Linear(2, 3), ow.nn.Sigmoid(), ow.nn.Scale(2.0))
    restored = pickle.loads(pickle.dumps(copy.deepcopy(module)))
    x = torch.rand(4, 2)
    torch.testing.assert_close(restored(x), module(x))


def test_nobody_takes_the_name_of_anothers_gradient() -> None:
    def define(name: str) -> ow.Op[..., Any]:
        scope: dict[str, Any] = {"Tensor": Tensor, "__name__": __name__}
        exec(f"def {name}(x: Tensor) -> Tensor:\n    return x * 2", scope)
        return ow.op(namespace="robbed")(scope[name])

    define("gain")
    with pytest.raises(
        ValueError, match=r"gain_backward is what the gradient of gain is called; declare it with @gain\."
    ):
        define("gain_backward")
    define("loss_saving")
    with pytest.raises(ValueError, match="loss: loss_saving is what the form that saves of loss is called"):
        define("loss")


def test_a_factory_may_run_again_with_the_same_helpers() -> None:
    def make(below: int, above: int) -> ow.Op[..., Any]:
        def first(x: Tensor) -> Tensor:
            return x * above

        @ow.op(namespace="again")
        def made(x: Tensor) -> Tensor:
            return first(second(x))

        def second(x: Tensor) -> Tensor:
            return x + below

        return made

    make(1, 2)
    assert make(1, 2)(torch.ones(1)).item() == 4.0
    with pytest.raises(ValueError, match="made: the function that makes it ran twice with different values"):
        make(1, 3)


def calls(op: Any) -> torch.nn.Module:
    class Calls(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return op(x)  # type: ignore[no-any-return]

    return Calls()


def test_scripts_call_the_operator_that_stands_behind_the_name_now() -> None:
    x = torch.ones(2)
    for parameters, factor in (("x: Tensor", "2"), ("x: Tensor, k: float = 3.0", "k"), ("x: Tensor", "5")):
        scope: dict[str, Any] = {"Tensor": Tensor, "__name__": __name__}
        exec(f"def scripted({parameters}) -> Tensor:\n    return x * {factor}", scope)
        op: ow.Op[..., Any] = ow.op(namespace="again")(scope["scripted"])
        torch.testing.assert_close(torch.jit.script(calls(op))(x), op(x))


def test_a_graph_is_not_differentiated_with_constants_of_a_later_cell() -> None:
    cell = "K = {k}\n@ow.op(opaque=True, name='redefined_constant')\ndef op(x: Tensor) -> Tensor: return x * K\n"
    scope: dict[str, Any] = {"__name__": "__main__", "ow": ow, "Tensor": Tensor}
    exec(compile(cell.format(k=2.0), "<cell>", "exec"), scope)
    x = torch.ones(1, requires_grad=True)
    first, second = scope["op"](x), scope["op"](x)
    exec(compile(cell.format(k=2.0), "<cell>", "exec"), scope)  # run again as it is
    first.backward()
    assert x.grad is not None
    assert x.grad.item() == 2.0
    exec(compile(cell.format(k=5.0), "<cell>", "exec"), scope)
    z = torch.ones(1, requires_grad=True)
    scope["op"](z).backward()
    assert z.grad is not None
    assert z.grad.item() == 5.0
    with pytest.raises(ow.BadReference, match="redefined_constant was defined again since this was recorded"):
        second.backward()


def test_a_kernel_in_python_takes_what_its_operator_takes() -> None:
    @ow.op(name="python_kernel")
    def op(x: Tensor, k: float = 2.0, *, plus: float = 0.0) -> Tensor:
        return x * k + plus

    for wrong in (lambda x: x, lambda x, k: x, lambda x, k, plus, more: x):
        with pytest.raises(TypeError, match=r"python_kernel: its kernel must take what it takes, \(x, k, plus\), got"):
            op.kernel("cpu")(wrong)

    @op.kernel("cpu")
    def _(x: Tensor, k: float = 7.0, *, plus: float = 9.0) -> Tensor:  # the operator's defaults count
        return x * k + plus + 100

    assert op(torch.ones(1)).item() == 102.0
    assert op(torch.ones(1), 3.0, plus=1.0).item() == 104.0


def test_a_compiled_function_follows_an_operator_that_is_defined_again() -> None:
    """Though PyTorch sees through it, and the function that calls it is written alike each time."""
    held: dict[str, Any] = {}
    compiled = torch.compile(lambda x: held["op"](x) + held["form"](x + 0), backend="aot_eager", fullgraph=True)
    for factor in (2.0, 3.0, 5.0):
        held["op"] = define(factor)
        held["form"] = ow.in_place(held["op"])
        assert compiled(torch.ones(1)).item() == 2 * factor


def test_a_declaration_that_cannot_be_leaves_the_operator_as_it_was() -> None:
    op = define(2.0)
    gradient = op.backward

    def cannot(op: Any, spec: Any) -> None:
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opwright.kit.dispatch.bind.Kernel", cannot)
        with pytest.raises(MemoryError):
            op.kernel("cpu")(lambda x: x * 2)
    assert not op.opaque
    assert op.kernels == []
    assert op.backward is gradient
    op.kernel("cpu")(lambda x: x * 2)
    assert op.opaque
    assert op(torch.ones(1)).item() == 2


def test_saving_twice_binds_the_form_that_stands_now() -> None:
    op = define(2.0)

    def saving(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x

    for kernels in (1, 0):
        op.saving("kept")(saving)
        assert op.saving_form is not None
        if kernels:
            op.saving_form.kernel("cpu")(saving)
        assert op.opaque == bool(kernels)
        assert (op._call is op.calls.direct) != op.opaque


@pytest.mark.skipif(native.available() is not None, reason="in Python the formula differentiates a form that writes")
def test_an_in_place_form_runs_a_kernel_that_its_gradient_gets_later() -> None:
    op = define(2.0)
    ran: list[str] = []
    op.kernel("cpu")(lambda x: x * 2)
    op.gradient(lambda grad: grad * 2)
    form = ow.in_place(op)
    form.kernel("cpu")(lambda x: x.mul_(2))

    def step() -> None:
        x = torch.ones(1, requires_grad=True)
        form(x * 1).sum().backward()

    def in_thread() -> list[str]:
        ran.clear()
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
        return list(ran)

    assert in_thread() == []

    @op.backward.kernel("cpu")
    def _(grad: Tensor, *, wanted: Any = None) -> tuple[Tensor]:
        ran.append("kernel")
        return (grad * 2,)

    assert in_thread() == ["kernel"]


def test_operators_are_called_while_they_change() -> None:
    op = define(2.0)
    op.kernel("cpu")(lambda x: x * 2)
    wrong: list[Any] = []
    done = threading.Event()

    def call() -> None:
        while not done.is_set():
            x = torch.ones(3, requires_grad=True)
            try:
                op(x).sum().backward()
            except Exception as e:
                wrong.append(e)
            else:
                wrong.extend([] if x.grad is not None and x.grad.tolist() == [2, 2, 2] else [x.grad])

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        op.gradient(lambda grad: grad * 2)
        _ = op.backward.schema
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]


def test_what_was_declared_of_a_gradient_stays_or_is_missed() -> None:
    op = define(2.0)
    op.gradient(lambda grad: grad * 2)
    op.backward.kernel("cpu")(lambda grad, *, wanted=None: (grad * 2,))
    for _round in range(2):
        op.fake(lambda x: torch.empty_like(x))
        assert [len(each.kernels) for each in op.ladder] == [0, 1]
    with pytest.warns(RuntimeWarning, match=r"declared of cell_backward \(kernels\) was for the former one"):
        op.gradient(lambda grad: grad * 3)
    assert op.backward.kernels == []


def test_not_opaque_is_what_an_operator_without_kernels_is() -> None:
    @ow.op(namespace="again", opaque=False)
    def seen(x: Tensor) -> Tensor:
        return x * 2

    assert not seen.opaque
    seen.kernel("cpu")(lambda x: x * 2 + 1)
    assert seen(torch.ones(1)).item() == torch.ops.again.seen(torch.ones(1)).item() == 3


@pytest.mark.parametrize("result", [None, 3.0, [torch.ones(1)]])
def test_a_kernel_that_returns_something_else_is_named(result: Any) -> None:
    op = define(2.0)
    op.kernel("cpu")(lambda x: result)
    with pytest.raises(TypeError, match=r"cell: its kernel <lambda> returned .*; it must return a Tensor"):
        op(torch.ones(1))
