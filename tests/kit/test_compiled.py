"""Compiled graphs and the operators in them: no graph meets another operator than the one it was compiled with."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opwright as ow
from opwright.kit.dispatch import registry

GATE = """
import torch, opwright as ow
from torch import Tensor
from helper import scale
@ow.op(opaque=True{options})
def gate(x: Tensor) -> Tensor:
    return {reference}
@gate.gradient
def _(grad, {takes}):
    return {formula}
x = torch.tensor([0.5, 2.0, -3.0], requires_grad=True)
def run(x):
    return gate(x).sum() if {python} else torch.ops.user.gate(x).sum()
eager, = torch.autograd.grad(run(x), x)
compiled, = torch.autograd.grad(torch.compile(run, fullgraph=True)(x), x)
torch.testing.assert_close(compiled, eager)
print(torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"])
"""
TANH = {"options": "", "reference": "x.tanh()", "takes": "result", "formula": "grad * (1 - result * result)"}
CUBE = {"options": "", "reference": "x * x * x", "takes": "x", "formula": "3 * grad * x * x"}
SCALED = {"options": "", "reference": "scale(x)", "takes": "x", "formula": "grad * scale(torch.ones_like(x))"}
WIDE = {"options": "", "reference": "x.double() * 3", "takes": "x", "formula": "grad.float() * 3"}


def run(folder: Path, caches: Path, text: dict[str, str], helper: str = "2", python: bool = True) -> int:
    """Run the script in a process of its own; how often it was served from PyTorch's cache."""
    folder.mkdir(exist_ok=True)
    (folder / "helper.py").write_text(f"def scale(x):\n    return x * {helper}\n")
    (folder / "gate.py").write_text(GATE.format(python=python, **text))
    done = subprocess.run(
        [sys.executable, "gate.py"],
        cwd=folder,
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(caches)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


SAVING = """
import torch
import opwright as ow

@ow.op
def gate(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + x.abs())

@gate.saving("scale")
def saving(x):
    scale = 1 / (1 + x.abs())
    return x * scale, scale

@gate.gradient
def _(grad, scale):
    return grad * scale * scale

gate.kernel("cpu")(lambda x: x / (1 + x.abs()))
gate.saving_form.kernel("cpu")(saving)
x = torch.randn(8, requires_grad=True)
torch.compile(lambda x: gate(x) * 2, fullgraph=True)(x).sum().backward()
torch.testing.assert_close(x.grad, 2 / (1 + x.detach().abs()) ** 2)
print(torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"])
"""


@pytest.mark.slow
def test_a_warm_start_finds_the_gradient_of_a_form_that_saves(tmp_path: Path) -> None:
    """Of which the cached graph calls the form alone, and then the gradient by name."""
    (tmp_path / "gate.py").write_text(SAVING)
    hits = []
    for _ in range(2):
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "caches")}
        command = [sys.executable, "gate.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        hits.append(int(done.stdout))
    assert hits == [0, 1]


@pytest.mark.slow
def test_scripts_with_operators_of_one_name_share_a_cache_in_peace(tmp_path: Path) -> None:
    caches = tmp_path / "caches"
    one, other = tmp_path / "one", tmp_path / "other"
    assert run(one, caches, TANH) == 0
    assert run(other, caches, CUBE) == 0
    assert run(one, caches, TANH) > 0, "a warm start is a cache hit"
    assert run(tmp_path / "elsewhere", caches, TANH) > 0, "from another folder too"
    assert run(one, caches, TANH, python=False) == 0
    assert run(one, caches, CUBE, python=False) == 0
    assert run(one, caches, WIDE) == 0
    assert run(one, caches, SCALED, helper="2") == 0
    assert run(one, caches, SCALED, helper="5") == 0, "what a reference names belongs to it"
    assert run(one, caches, SCALED, helper="5") > 0


def cell(reference: str, takes: str, formula: str) -> Any:
    """A notebook cell, run again after an edit."""
    scope: dict[str, Any] = {"Tensor": Tensor, "torch": torch, "ow": ow, "__name__": "notebook_of_compiled"}
    exec(
        f"@ow.op(opaque=True)\ndef edited(x: Tensor) -> Tensor:\n    return {reference}\n"
        f"@edited.gradient\ndef _(grad, {takes}):\n    return {formula}\n",
        scope,
    )
    return scope["edited"]


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_an_edited_cell_is_compiled_again(backend: str) -> None:
    x = torch.tensor([0.5, 2.0, -3.0], requires_grad=True)
    by_name = torch.compile(lambda x: torch.ops.notebook_of_compiled.edited(x), fullgraph=True, backend=backend)
    for reference, takes, formula in (
        ("x.tanh()", "x", "grad * (1 - x.tanh() ** 2)"),
        ("x.tanh()", "result", "grad * (1 - result * result)"),
        ("x * x", "x", "2 * grad * x"),
    ):
        edited = cell(reference, takes, formula)
        (expected,) = torch.autograd.grad(edited(x).sum(), x)
        by_object = torch.compile(lambda x, edited=edited: edited(x), fullgraph=True, backend=backend)
        for compiled in (by_object, by_name):
            (found,) = torch.autograd.grad(compiled(x).sum(), x)
            torch.testing.assert_close(found, expected)


def test_dynamo_stays_out_of_opwrights_own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._dynamo.convert_frame as convert_frame

    compiled: list[str] = []
    plain = convert_frame._compile

    def watch(code: Any, *args: Any, **kwargs: Any) -> Any:
        if "torch" not in code.co_filename and "typing" not in code.co_filename:
            compiled.append(code.co_name)
        return plain(code, *args, **kwargs)

    monkeypatch.setattr(convert_frame, "_compile", watch)

    @ow.op(opaque=True, namespace="compiled_frames")
    def wave(x: Tensor) -> Tensor:
        return x.sin()

    @torch.compile(backend="aot_eager")
    def step(x: Tensor) -> None:
        wave(wave(x)).sum().backward()

    x = torch.ones(3, requires_grad=True)
    step(x)
    torch.testing.assert_close(x.grad, x.sin().cos() * x.cos())
    assert "run" not in compiled
    assert set(compiled) <= {"step"} | {name for name in compiled if "resume" in name}


def test_a_first_call_of_data_dependent_shape_breaks_the_graph_and_works() -> None:
    @ow.op(opaque=True, namespace="compiled_frames")
    def above(x: Tensor) -> Tensor:
        return x[x > 0]

    found = torch.compile(lambda x: above(x) * 2, backend="aot_eager")(torch.tensor([1.0, -1.0, 3.0]))
    assert found.tolist() == [2.0, 6.0]


@pytest.mark.parametrize("form", ["number", "mask"])
def test_references_that_read_values_compile_as_the_plain_function_does(form: str) -> None:
    def number(x: Tensor, s: Tensor) -> Tensor:
        return x * s.item()

    def mask(x: Tensor, s: Tensor) -> Tensor:
        return x[x > s.item()]

    plain = {"number": number, "mask": mask}[form]
    op: ow.Op[..., Any] = ow.op(opaque=True, namespace="compiled_values", name=form)(plain)
    given = torch.tensor([0.5, 2.0, 3.0])
    expected, found = given.clone().requires_grad_(), given.clone().requires_grad_()
    plain(expected, torch.tensor(1.0)).sin().sum().backward()
    compiled = torch.compile(lambda x, s: op(x, s).sin(), fullgraph=True, backend="aot_eager")
    compiled(found, torch.tensor(1.0)).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad)


def test_composite_losses_have_their_shapes_in_dynamic_graphs() -> None:
    def entropy(x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(x, target, reduction="none")

    def hinge(x: Tensor, target: Tensor) -> Tensor:
        return F.hinge_embedding_loss(x, target)

    for plain, target in ((entropy, torch.tensor([0, 1, 2, 0])), (hinge, torch.ones(4, 3))):
        op: ow.Op[..., Any] = ow.op(opaque=True, namespace="compiled_losses")(plain)
        x = torch.randn(4, 3, requires_grad=True)
        (expected,) = torch.autograd.grad(plain(x, target).sum(), x)
        compiled = torch.compile(lambda x, t, op=op: op(x, t) * 1, fullgraph=True, backend="aot_eager", dynamic=True)
        (found,) = torch.autograd.grad(compiled(x, target).sum(), x)
        torch.testing.assert_close(found, expected)


def test_sizes_known_only_at_run_time_broadcast() -> None:
    @ow.op(namespace="compiled_sizes")
    def total(x: Tensor, y: Tensor) -> Tensor:
        ow.require(ow.broadcastable(x, y), "x and y must broadcast, got {x.shape} and {y.shape}")
        return x + y

    mask = torch.tensor([True, False, True])
    for op in (total, ow.axpby):
        compiled = torch.compile(lambda x, m, op=op: op(x[m], x[m]), fullgraph=True, backend="aot_eager")
        for _ in range(2):
            x = torch.ones(3, requires_grad=True)
            out = compiled(x, mask)
            assert out.tolist() == [2.0, 2.0]
            out.sum().backward()
            assert x.grad is not None
            assert x.grad.tolist() == [2.0, 0.0, 2.0]


def test_lazily_conjugated_results_compile_after_eager_calls() -> None:
    def spectrum(x: Tensor) -> Tensor:
        return torch.fft.ifft(x, 8, 1, "ortho")  # type: ignore[no-any-return]

    op: ow.Op[..., Any] = ow.op(opaque=True, namespace="compiled_conjugates")(spectrum)
    x, grad = torch.randn(5, 6, requires_grad=True), torch.randn(5, 8, dtype=torch.complex64)
    (expected,) = torch.autograd.grad(spectrum(x), x, grad)
    for call in (op, op, torch.compile(op, fullgraph=True, backend="aot_eager")):
        torch.testing.assert_close(torch.autograd.grad(call(x), x, grad)[0], expected)


def test_operators_differ_by_decorators_extras_and_declared_shapes() -> None:
    def by(factor: float) -> Any:
        def decorate(function: Any) -> Any:
            @functools.wraps(function)
            def scaled(x: Tensor) -> Any:
                return function(x) * factor

            return scaled

        return decorate

    numbers = itertools.count()

    def defined(factor: float, extra: float, shape: float) -> str:
        def wave(x: Tensor) -> Tensor:
            return x.sin()

        op: ow.Op[..., Any] = ow.op(namespace=f"compiled_digests{next(numbers)}")(by(factor)(wave))
        op.saving("kept")(lambda x: (x.sin(), x.cos() * extra))
        op.gradient(lambda grad, kept: grad * kept)
        op.backward.fake(lambda **given: torch.empty_like(given["grad"]) * shape)
        return op.digest

    plain = defined(1.0, 1.0, 1.0)
    assert plain == defined(1.0, 1.0, 1.0)
    for other in ((2.0, 1.0, 1.0), (1.0, 2.0, 1.0), (1.0, 1.0, 2.0)):
        assert plain != defined(*other)


def test_what_an_operator_is_stays_in_the_key_whoever_writes_there() -> None:
    config = torch.compiler.config

    @ow.op(opaque=True, namespace="compiled_tags")
    def gate(x: Tensor) -> Tensor:
        return x.tanh()

    def compiled_tag(mine: str) -> list[str]:
        config.cache_key_tag = mine
        torch.compiler.reset()
        torch.compile(lambda x: gate(x), backend="aot_eager", fullgraph=True)(torch.ones(2))
        return config.cache_key_tag.split()

    try:
        first = compiled_tag("mine")
        assert len(first) == 3
        assert first[:2] == ["mine", "opwright"]
        assert compiled_tag("theirs") == ["theirs", *first[1:]]
        assert compiled_tag("")[:2] == first[1:]

        @ow.op(opaque=True, namespace="compiled_tags")
        def gain(x: Tensor) -> Tensor:
            return gate(x) * 2

        torch.compile(lambda x: gain(x), backend="aot_eager")(torch.ones(2))
        config.cache_key_tag += " appended"
        torch.compiler.reset()
        factor = 2.0

        @ow.op(opaque=True, namespace="compiled_tags")
        def loss(x: Tensor) -> Tensor:
            return x * factor

        torch.compile(lambda x: loss(x), backend="aot_eager")(torch.ones(2))
        tags = config.cache_key_tag.split()
        assert tags[:2] == ["appended", "opwright"]
        assert len(tags) == 3
        before, factor = tags, 3.0
        torch.compiler.reset()
        torch.compile(lambda x: loss(x), backend="aot_eager")(torch.ones(2))
        assert config.cache_key_tag.split() != before, "what is edited between two compilations is noticed"
    finally:
        config.cache_key_tag = ""


def test_an_operator_is_hashed_once_while_something_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from opwright.kit import op
    from opwright.kit.spec import captured

    hashed: list[str] = []

    def watch(*parts: Any) -> str:
        hashed.append(captured.digest(*parts))
        return hashed[-1]

    monkeypatch.setattr(op, "digest", watch)

    @ow.op(opaque=True, namespace="compiled_hashes")
    def gate(x: Tensor) -> Tensor:
        return x.tanh()

    torch.compile(lambda x: gate(gate(gate(gate(x)))), backend="aot_eager", fullgraph=True)(torch.ones(2))
    assert 1 <= len(hashed) <= 2


def test_the_internal_names_of_an_operator_are_its_own() -> None:
    def define(name: str, parameters: str) -> ow.Op[..., Any]:
        scope: dict[str, Any] = {"Tensor": Tensor, "__name__": __name__}
        exec(f"def {name}({parameters}) -> Tensor:\n    return x * 2", scope)
        return ow.op(namespace="compiled_names")(scope[name])

    short, long = define("f", "x: Tensor"), define("foo", "x: Tensor")
    define("foo", "x: Tensor, k: float = 1.0")
    assert registry.names_of(short) == ""
    assert registry.names_of(long) == "compiled_names::foo__2"
