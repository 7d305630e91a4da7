"""Mistakes that users met, each kept from coming back."""

from __future__ import annotations

import enum
import functools
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import opwright as ow

EDITED = """
import sys, torch, opwright as ow
from torch import Tensor
k = float(sys.argv[1])

@ow.op
def edited(x: Tensor) -> Tensor:
    return x * x

@edited.gradient
def _(grad, x):
    return grad * x * k

@edited.kernel("cpu")
def _(x):
    return x * x

@ow.op
def plain(x: Tensor) -> Tensor:
    return x * k

@ow.op(random=True, opaque=True)
def noisy(x: Tensor) -> Tensor:
    return x * k + 0 * torch.rand(())

for call in (edited, torch.ops.user.edited, plain, torch.ops.user.plain, noisy):
    x = torch.tensor([3.0], requires_grad=True)
    out = torch.compile(lambda x: call(x), fullgraph=True)(x)
    out.backward()
    print(round(out.item(), 4), round(x.grad.item(), 4))
"""


@pytest.mark.slow
def test_an_edited_operator_is_never_served_from_a_compilers_old_cache(tmp_path: Path) -> None:
    script = tmp_path / "edited.py"
    script.write_text(EDITED)
    for k in (2, 7):
        done = subprocess.run([sys.executable, str(script), str(k)], capture_output=True, text=True, check=True)
        rows = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
        assert rows == [(9.0, 3.0 * k)] * 2 + [(3.0 * k, k)] * 3, k


def test_two_closures_of_one_function_are_not_one_operator() -> None:
    def make(k: float, name: str | None = None) -> Any:
        @ow.op(name=name, opaque=True)
        def closed(x: Tensor) -> Tensor:
            ow.require(x.dim() < 9, "too deep")
            return k * x

        return closed

    two = make(2.0)
    with pytest.raises(ValueError, match="closed: the function that makes it ran twice with different values"):
        make(3.0)
    assert two(torch.ones(1)).item() == 2.0
    make(2.0)  # the same again is the same
    three, four = make(3.0, "three"), make(4.0, "four")
    assert (three(torch.ones(1)).item(), four(torch.ones(1)).item()) == (3.0, 4.0)
    with pytest.raises(ValueError, match="three: too deep"):
        three(torch.ones([1] * 9))


def test_a_pending_backward_of_a_replaced_operator_keeps_its_own_gradient() -> None:
    def cell(power: int) -> Any:
        scope: dict[str, Any] = {"Tensor": Tensor, "__name__": "notebook"}
        exec(f"def pending(x: Tensor) -> Tensor:\n    return x ** {power}", scope)
        return ow.op(opaque=True)(scope["pending"])

    x = torch.tensor([3.0], requires_grad=True)
    first = cell(2)
    waiting = first(x)
    second = cell(3)
    waiting.backward()
    assert x.grad is not None
    assert x.grad.item() == 6.0
    x.grad = None
    second(x).backward()
    assert x.grad is not None
    assert x.grad.item() == 27.0


def test_whoever_takes_a_generator_is_random() -> None:
    @ow.op(opaque=True)
    def drawn(x: Tensor, g: torch.Generator) -> Tensor:
        return x * torch.rand(x.shape, generator=g)

    x = torch.ones(4, requires_grad=True)
    out = drawn(x, torch.Generator().manual_seed(0))
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach())


def test_an_in_place_operator_must_write() -> None:
    @ow.op
    def forgets_(x: Tensor) -> Tensor:
        return x * 2

    @ow.op
    def lazy_(x: Tensor) -> Tensor:
        return x

    with pytest.raises(ow.BadReference, match="forgets_: its name ends in _, which promises to write to 'x'"):
        forgets_(torch.ones(2))
    with pytest.raises(ow.BadReference, match=r"lazy_: its name ends in _, .* and the reference did not"):
        lazy_(torch.ones(2))
    with pytest.raises(TypeError, match="acc_: a name that ends in _ promises to write its first argument, 'x'"):

        @ow.op(mutates=("y",))
        def acc_(x: Tensor, y: Tensor) -> Tensor:
            return y.add_(x)


def test_the_probe_asks_until_it_is_answered() -> None:
    @ow.op
    def flat(x: Tensor) -> Tensor:
        return x.reshape(-1)

    flat(torch.ones(0, 2))  # an empty tensor shares no memory
    flat(torch.ones(3, 4).t())  # a copy
    with pytest.raises(ow.BadReference, match="flat: the reference returns a view of x"):
        flat(torch.ones(3, 4))

    @ow.op(opaque=True)
    def sometimes(x: Tensor, flag: bool) -> Tensor:
        if flag:
            x.mul_(2)
        return x + 1

    sometimes(torch.ones(1), False)
    with pytest.raises(ow.BadReference, match="sometimes: the reference writes to its argument 'x'"):
        sometimes(torch.ones(1), True)


def test_another_threads_random_numbers_are_not_the_operators() -> None:
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            torch.rand(10)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for i in range(30):
            scope: dict[str, Any] = {"Tensor": Tensor, "__name__": "notebook"}
            exec("def calm(x: Tensor) -> Tensor:\n    return x * x", scope)
            op = ow.op(name=f"calm_{i}", opaque=True)(scope["calm"])
            x = torch.ones(2, requires_grad=True)
            op(x).sum().backward()
    finally:
        stop.set()
        thread.join()


def test_randomness_on_a_later_path_is_noticed_by_the_derived_gradient() -> None:
    @ow.op(opaque=True)
    def dropped(x: Tensor, training: bool) -> Tensor:
        return torch.nn.functional.dropout(x, 0.5, training) * 1

    dropped(torch.ones(4), False)
    x = torch.ones(64, requires_grad=True)
    out = dropped(x, True)
    with pytest.raises(ow.BadReference, match="draws random numbers"):
        out.sum().backward()


def test_results_whose_shape_depends_on_values_compile() -> None:
    @ow.op(opaque=True)
    def positive(x: Tensor) -> Tensor:
        return x[x > 0] * 2

    x = torch.tensor([1.0, -1.0, 2.0])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(lambda x: positive(x), backend="aot_eager", fullgraph=True)
        assert compiled(x).tolist() == [2.0, 4.0]
    assert ow.explain(positive, x).error is None


@pytest.mark.parametrize("name", ["out", "self", "_reference", "_state", "_op", "name", "args", "kwargs", "values"])
@pytest.mark.parametrize("opaque", [False, True])
def test_parameters_may_have_any_name(name: str, opaque: bool) -> None:
    scope: dict[str, Any] = {"Tensor": Tensor, "__name__": "named"}
    exec(f"def f({name}: Tensor, wanted: Tensor, grad: Tensor) -> Tensor:\n    return {name} * wanted * grad", scope)
    op = ow.op(name=f"named_{name}", namespace=f"named_{opaque}", opaque=opaque)(scope["f"])
    given = {n: torch.full((1,), 2.0, requires_grad=True) for n in (name, "wanted", "grad")}
    out = op(**given)
    assert out.item() == 8.0
    out.backward()
    assert [t.grad.item() for t in given.values() if t.grad is not None] == [4.0] * 3


@pytest.mark.parametrize("name", ["größe", "class", "name", "__add__", "a b", "1st"])
def test_names_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=r"give another with @ow\.op\(name=…\)"):
        ow.op(name=name)(every)


def every(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize(
    "annotation, default",
    [
        ("list[str]", "['a', 'b']"),
        ("list[float]", "[float('inf')]"),
        ("list[Tensor]", "[]"),
        ("str", "'a\\nb'"),
        ("int", "2**63"),
        ("float", "float('nan')"),
    ],
)
def test_defaults_a_schema_cannot_hold_are_refused_or_kept(annotation: str, default: str) -> None:
    scope: dict[str, Any] = {"Tensor": Tensor, "__name__": "defaults"}
    exec(f"def f(x: Tensor, a: {annotation} = {default}) -> Tensor:\n    return x * 2", scope)
    with pytest.raises(TypeError, match=r"f: the default .* of 'a' cannot be written in a schema"):
        ow.op(namespace="defaults")(scope["f"])


@pytest.mark.parametrize("thing", [3, "name", functools.partial(every), torch.add, Tensor])
def test_what_is_no_function_is_refused(thing: Any) -> None:
    with pytest.raises(TypeError, match="a reference is a plain function, got"):
        ow.op(thing)


def test_bad_options_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="every: compile must be 'call' or 'inline', got 'bogus'"):
        ow.op(compile="bogus")(every)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"namespace is made of letters, digits and _, got 'a\.b'"):
        ow.op(namespace="a.b")(every)
    op = ow.op(namespace="reported")(every)
    with pytest.raises(ValueError, match="every: a kernel is for a kind of device such as 'cpu' or 'cuda', got 'cpuu'"):
        op.kernel("cpuu")
    with pytest.raises(TypeError, match="every: its gradient must be a function, got int"):
        op.gradient(3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="in_place: its argument must be an operator, got int"):
        ow.in_place(3)  # type: ignore[arg-type]

    @ow.op(mutates="mean", namespace="reported")
    def follows(x: Tensor, mean: Tensor) -> Tensor:
        mean.copy_(x)
        return x * 2

    assert "Tensor(a1!) mean" in follows.schema


def test_a_check_survives_its_own_message() -> None:
    with pytest.raises(ValueError, match=r"got {1, 2}"):
        ow.require(False, "got {1, 2}")
    with pytest.raises(ValueError, match=r"{missing} is not local"):
        ow.require(False, "{missing} is not local")


class Sides(enum.Flag):
    LEFT = 1
    RIGHT = 2


@pytest.mark.parametrize("opaque", [False, True])
def test_flags_and_literal_numbers_cross_the_dispatcher(opaque: bool) -> None:
    @ow.op(opaque=opaque, namespace=f"flags_{opaque}")
    def flagged(x: Tensor, sides: Sides = Sides.LEFT, *, k: Literal[2, 3] = 2) -> Tensor:
        return x * (int(bool(sides & Sides.LEFT)) + int(bool(sides & Sides.RIGHT))) * k  # torch 2.10 traces no `in`

    assert flagged(torch.ones(1), Sides.LEFT | Sides.RIGHT, k=3).item() == 6.0
    compiled = torch.compile(flagged, backend="aot_eager", fullgraph=True, dynamic=True)
    assert compiled(torch.ones(1), Sides.RIGHT, k=3).item() == 3.0
    assert compiled(torch.ones(1), Sides.RIGHT, k=2).item() == 2.0


def test_a_gradient_of_the_wrong_shape_or_count_is_refused() -> None:
    @ow.op(opaque=True)
    def summed(x: Tensor, many: list[Tensor]) -> Tensor:
        return x + many[0] + many[1]

    @summed.gradient
    def _(grad: Tensor) -> Any:
        return grad.expand(7), [grad]

    x = torch.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match=r"summed: its gradient returned shape \(7,\) for x of shape \(1,\)"):
        summed(x, [x.detach(), x.detach()]).backward()
    y = torch.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match="summed: its gradient returned 1 gradients for the 2 of many"):
        summed(x.detach(), [y, y * 1]).backward()


def test_a_number_takes_no_tensor_like() -> None:
    with pytest.raises(TypeError, match="scale: factor must be a number, got ScaledIdentity"):
        ow.scale(torch.ones(1), ow.tensors.ScaledIdentity(1, torch.ones(())))


def test_explain_knows_random_operators() -> None:
    @ow.op(random=True)
    def noise(x: Tensor) -> Tensor:
        return x * torch.rand_like(x)

    assert "records what the reference does" in str(ow.explain(noise, torch.ones(1, requires_grad=True)))
    assert "no input requires a gradient" in str(ow.explain(noise, torch.ones(1)))


def test_an_operators_folder_may_hold_more_than_one_file(tmp_path: Path) -> None:
    (tmp_path / "constants.py").write_text("FACTOR = 3\n")
    file = tmp_path / "op.py"
    file.write_text(
        "import torch, opwright as ow\nfrom .constants import FACTOR\n\n@ow.op\n"
        "def neighbourly(x: torch.Tensor) -> torch.Tensor:\n    return x * FACTOR\n"
    )
    assert ow.load(tmp_path).neighbourly(torch.ones(1)).item() == 3.0
    (tmp_path / "constants.py").write_text("FACTOR = 5 + 0\n")
    assert ow.load(tmp_path).neighbourly(torch.ones(1)).item() == 5.0


def test_a_rung_that_nobody_asked_for_yet_unpickles() -> None:
    code = "import sys, pickle, opwright; print(pickle.loads(sys.stdin.buffer.read()).name)"
    given = pickle.dumps(ow.cube.backward.backward)
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "cube_backward_backward"
