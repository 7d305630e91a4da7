"""Classes that hold state in C++: made, called, pickled, passed to operators and threads, freed with the last user."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.dispatch import objects
from opwright.kit.spec.kinds import kind_of
from opwright.kit.state import Classes, StateClass
from tests.classes import CELLS, RESULTS, run

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "state"


def test_a_class_may_be_an_annotation_and_one_that_is_not_there_says_so() -> None:
    made = StateClass("Table", (), {"__opwright_schema__": "__torch__.torch.classes.tables.Table"})
    kind = kind_of(made)
    assert kind is not None
    assert kind.schema == "__torch__.torch.classes.tables.Table"
    assert repr(made) == "<class tables.Table, held in C++>"
    assert not isinstance(3, made)
    with pytest.raises(TypeError):
        kind.convert(3)
    with pytest.raises(AttributeError, match=re.escape("tables has no class 'Table'; add OPWRIGHT_CLASS(Table, c)")):
        Classes("tables").Table  # noqa: B018


def test_the_stored_table_has_every_cell_for_the_releases_that_are_named() -> None:
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert {"2.10.0", "2.13.0"} <= set(stored)
    for version, found in stored.items():
        assert list(found["cells"]) == list(CELLS), version


class Table:
    """As an object of C++ looks from Python."""

    def __init__(self, *items: Any) -> None:
        self.items = list(items)

    def __getstate__(self) -> Any:
        return {"items": list(self.items)}

    def __setstate__(self, state: Any) -> None:
        self.items = list(state["items"])


class Bare:
    __slots__ = ()
    __getstate__ = property()  # type: ignore[assignment]


def test_a_gradient_gets_an_object_as_it_was_at_the_call() -> None:
    op: Any = SimpleNamespace(name="looked_up")
    held = torch.ones(2)
    table = Table(held, 3, "word")
    seen = objects.Seen(op, "table", table)
    assert seen.as_it_was() is table
    table.items[0] = held.clone()  # the same, elsewhere
    assert seen.as_it_was() is table
    table.items += [torch.zeros(2)]
    former = seen.as_it_was()
    assert former is not table
    assert former.items[0] is held
    assert (len(former.items), len(table.items)) == (3, 4)
    held.mul_(2)
    with pytest.raises(RuntimeError, match="its argument table holds a tensor that has been modified by an inplace"):
        seen.as_it_was()
    with pytest.raises(TypeError, match=r"looked_up: its argument table .* give its class def_pickle"):
        objects.Seen(op, "table", Bare())


def test_a_class_is_found_by_its_name_and_has_its_static_methods_and_no_subclasses() -> None:
    there = Classes("quantized")  # of PyTorch's own
    with pytest.raises(AttributeError, match="no class 'Conv2dPackedParamBase'; did you mean Conv2dPackedParamsBase"):
        _ = there.Conv2dPackedParamBase
    with pytest.raises(AttributeError, match=r"no class 'Elsewhere'; add OPWRIGHT_CLASS\(Elsewhere, c\)"):
        _ = there.Elsewhere
    found: Any = there.Conv2dPackedParamsBase
    with pytest.raises(TypeError, match=r"Mine: <class .*> cannot be subclassed in Python.*hold one in an attribute"):
        type("Mine", (found,), {})
    with pytest.raises(AttributeError, match="has no static method 'count'"):
        _ = found.count
    found._make = SimpleNamespace(count=lambda: 3)
    assert found.count() == 3


@pytest.fixture(scope="module")
def stacks() -> Any:
    return ow.load_classes(EXAMPLES / "stack.cpp", name="stacks")


@pytest.mark.slow
def test_a_stack_is_used_pickled_and_passed_to_an_operator(stacks: Any) -> None:
    stack = stacks.Stack([torch.ones(2)])
    stack.push(torch.zeros(2))
    assert isinstance(stack, stacks.Stack)
    assert (stack.size(), pickle.loads(pickle.dumps(stack)).size(), copy.deepcopy(stack).size()) == (2, 2, 2)
    assert torch.ops.stacks.total(stack).tolist() == [1.0, 1.0]
    stack.merge(stack)
    other = stack.clone()
    assert (stack.size(), other.pop().tolist(), other.size()) == (4, [0.0, 0.0], 3)
    for _ in range(4):
        stack.pop()
    with pytest.raises(RuntimeError, match="Stack: there is nothing to pop"):
        stack.pop()


@pytest.mark.slow
def test_threads_share_one_and_the_last_user_frees_it(stacks: Any) -> None:
    stack = stacks.Stack([])

    def work() -> None:
        for _ in range(500):
            stack.push(torch.ones(1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stack.size() == 2000
    held = torch.ones(3)
    storage = held.untyped_storage()

    def users() -> int:
        return torch._C._storage_Use_Count(storage._cdata)

    alone = users()
    kept = stacks.Stack([held])
    other = kept  # a second user
    del held, kept
    gc.collect()
    assert (other.size(), users()) == (1, alone)  # the tensor is the stack's now
    del other
    gc.collect()
    assert users() == alone - 1


@pytest.mark.slow
def test_an_object_that_changes_after_the_call_changes_no_gradient(stacks: Any) -> None:
    def by_top(stack: Any, x: Tensor) -> Tensor:
        out: Tensor = x**2 * stack.clone().pop()
        return out

    class Adopted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, stack: Any, x: Tensor) -> Any:
            ctx.top = stack.clone().pop()
            ctx.save_for_backward(x)
            return x**2 * ctx.top

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return None, 2 * grad * ctx.top * ctx.saved_tensors[0]

    by_top.__annotations__["stack"] = stacks.Stack
    plain = ow.op(name="state_by_top")(by_top)
    plain.kernel("cpu")(lambda stack, x: x**2 * stack.clone().pop())
    for op in (plain, ow.adopt(Adopted, reference=by_top, name="state_by_top_adopted")):
        for _ in range(2):
            stack, x = stacks.Stack([torch.full((2,), 2.0)]), torch.ones(2, requires_grad=True)
            y = op(stack, x)
            stack.push(torch.full((2,), 100.0))
            (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x)
            assert (first.tolist(), second.tolist(), stack.size()) == ([4.0, 4.0], [4.0, 4.0], 2)
        held = torch.full((2,), 2.0)
        stack = stacks.Stack([held])
        y = op(stack, x)
        held.mul_(2)
        with pytest.raises(RuntimeError, match="stack holds a tensor that has been modified by an inplace operation"):
            y.sum().backward()


BOX = """
#include <opwright/state.h>
struct Box : State { int64_t get() { return 107; } };
static int64_t dimensions(const torch::Tensor& x) { return x.dim(); }
OPWRIGHT_CLASS(Box, c) {
    c.def(torch::init<>()).def("get", &Box::get).def_static("dimensions", &dimensions);
}
"""


@pytest.mark.slow
def test_classes_of_one_name_in_cpp_are_refused_and_in_unnamed_namespaces_are_two(tmp_path: Path) -> None:
    file = tmp_path / "box.cpp"
    file.write_text(BOX, encoding="utf-8")
    one: Any = ow.load_classes(file, name="boxes_one")
    with pytest.raises(ow.BuildError, match=r"its class Box has the name in C\+\+ of a class of boxes_one"):
        ow.load_classes(file, name="boxes_two")
    text = BOX.replace("struct Box", "namespace { struct Box").replace("107; } };", "108; } }; }")
    file.write_text(text, encoding="utf-8")
    two: Any = ow.load_classes(file, name="boxes_two")
    assert (one.Box().get(), two.Box().get()) == (107, 108)
    assert two.Box.dimensions(torch.ones(2, 3)) == 2


@pytest.mark.slow
def test_an_edited_class_is_refused_where_pytorch_would_end_the_process(stacks: Any, tmp_path: Path) -> None:
    file = tmp_path / "stack.cpp"
    file.write_text((EXAMPLES / "stack.cpp").read_text(encoding="utf-8") + "// edited\n", encoding="utf-8")
    with pytest.raises(ow.BuildError, match=r"stacks: stack.cpp registers stacks::total, which this process has"):
        ow.load_classes(file, name="stacks")  # before anything is built
    assert stacks.Stack([]).size() == 0
    file.write_text(BOX.replace("Box", "Edited"), encoding="utf-8")
    edited: Any = ow.load_classes(file, name="edited_classes")
    file.write_text(BOX.replace("Box", "Edited").replace("107", "108"), encoding="utf-8")
    with pytest.raises(ow.BuildError, match="edited_classes: its class Edited stands in another version of it"):
        ow.load_classes(file, name="edited_classes")
    assert edited.Edited().get() == 107


@pytest.mark.slow
def test_a_stream_holds_what_the_librarys_operator_remembers_and_is_an_argument_of_another() -> None:
    streams: Any = ow.load_classes(EXAMPLES / "stream.cpp", name="streams")
    weight, bias, h = torch.rand(12, 7), torch.rand(12), torch.zeros(2, 4)
    stream = streams.Stream(weight, bias, h, h)
    state, xs = (h, h), torch.rand(5, 2, 3)
    for x in xs:
        state = ow.lltm_cell(x, weight, bias, *state)
        assert torch.equal(stream.step(x), state[0])
    assert all(torch.equal(a, b) for a, b in zip(stream.remembered(), state, strict=True))
    back = pickle.loads(pickle.dumps(stream))
    assert torch.equal(back.step(xs[0]), ow.lltm_cell(xs[0], weight, bias, *state)[0])

    def heard(stream: Any, x: Tensor) -> Tensor:
        out: Tensor = ow.lltm_cell(x, *stream.parameters(), *stream.remembered())[0]
        return out

    heard.__annotations__["stream"] = streams.Stream

    op = ow.adopt(torch.ops.streams.heard, reference=heard, name="stream_heard")
    for _ in range(2):
        a, b = (xs[1].clone().requires_grad_() for _ in range(2))
        op(stream, a).sum().backward()
        heard(stream, b).sum().backward()
        assert torch.allclose(a.grad, b.grad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="stream_heard: stream must be a Stream"):
        op(3, xs[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell",
    [
        "pickle",
        "TorchScript, torch.classes",
        "torch.compile around a call",
        "torch.load, as it is by default",
        "an opaque object around it, torch.compile(fullgraph=True)",
    ],
)
def test_the_stored_cells_are_what_happens(cell: str) -> None:
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))
    version = torch.__version__.partition("+")[0]
    if version not in stored:
        pytest.skip(f"nothing is stored for torch {version}")
    assert run(CELLS[cell]) == stored[version]["cells"][cell]


@pytest.mark.slow
def test_the_class_of_the_page_runs(tmp_path: Path) -> None:
    page = Path(__file__).parent.parent.parent / "docs" / "state.md"
    (code,) = re.findall(r"^```cpp\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "counter.cpp").write_text(code, encoding="utf-8")
    use = "import opwright as ow; c = ow.load_classes('counter.cpp', name='counting').Counter(); "
    use += "print(c.next(), c.next())"
    done = subprocess.run([sys.executable, "-c", use], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "1 2\n", done.stderr
