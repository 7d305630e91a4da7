"""Exported programs and the operators in them: a program meets the one it was exported with, or says what differs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import opwright as ow

LOADS = """
import os, sys
import torch
import opwright as ow
from torch import Tensor
for number, source in enumerate(sys.argv[2:]):
    if os.fork() == 0:
        try:
            exec(source)
            program = torch.export.load(sys.argv[1])
            says = str(program.module()(torch.ones(3)).tolist())
        except Exception as e:
            says = f"{type(e).__name__}: {e}"
        open(f"{sys.argv[1]}.{number}", "w").write(says)
        os._exit(0)
    os.wait()
"""
BEFORE = "(Tensor x, float by=2.) -> Tensor"
CHANGES = {
    "x + x * (by - 1)|x: Tensor, by: float = 2.0|Tensor": "[4.0, 4.0, 4.0]",
    "x * to|x: Tensor, to: float = 2.0|Tensor": "(Tensor x, float to=2.) -> Tensor",
    "x * by + add|x: Tensor, by: float = 2.0, add: float = 0.0|Tensor": "(Tensor x, float by=2., float add=0.)",
    "(x * by, x)|x: Tensor, by: float = 2.0|tuple[Tensor, Tensor]": "-> (Tensor, Tensor)",
    "x * by|x: Tensor, by: Tensor|Tensor": "(Tensor x, Tensor by) -> Tensor",
    "(x * by).double()|x: Tensor, by: float = 2.0|Tensor": "results of float32 then, of float64 now",
    # A new argument without a default is PyTorch's own error at loading, which it explains in a warning.
    "x * times|x: Tensor, times: float|Tensor": "torch.ops.user.exported_scale.default",
}


class Model(nn.Module):
    def __init__(self, op: ow.Op) -> None:  # type: ignore[type-arg]
        super().__init__()
        self.op = op

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.op(x, 3.0)
        return y + 1


def define(change: str) -> str:
    body, takes, gives = change.split("|")
    head = "@ow.op(name='exported_scale', namespace='user', opaque=True)"
    return f"{head}\ndef scale({takes}) -> {gives}:\n    return {body}\n"


@ow.op(name="exported_scale", namespace="user", opaque=True)
def scale(x: Tensor, by: float = 2.0) -> Tensor:
    return x * by


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the program gives, in other processes, where the operator is another."""
    file = tmp_path_factory.mktemp("exported") / "scale.pt2"
    torch.export.save(torch.export.export(Model(scale), (torch.ones(3),)), file)
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(file), *map(define, CHANGES)],
        cwd=file.parent,
        env=os.environ | {"PYTHONPATH": str(Path(ow.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    texts = {change: Path(f"{file}.{number}").read_text() for number, change in enumerate(CHANGES)}
    return {change: text + done.stderr if "warnings above" in text else text for change, text in texts.items()}


@pytest.mark.parametrize("change", CHANGES)
def test_an_exported_program_meets_its_own_operator_or_says_what_differs(change: str, found: dict[str, str]) -> None:
    assert CHANGES[change] in found[change]
    if "then" in found[change]:
        assert "user::exported_scale is not what it was when this program was exported" in found[change]
        assert BEFORE in found[change] or "float32 then" in found[change]


@pytest.mark.parametrize("strict", [False, True])
def test_the_notes_stay_with_the_program_until_it_is_decomposed(strict: bool) -> None:
    program = torch.export.export(Model(scale), (torch.ones(3),), strict=strict)
    assert program.graph_module.code.count("opwright_exported") == 2
    decomposed = program.run_decompositions()
    assert "opwright_exported" not in decomposed.graph_module.code
    assert decomposed.module()(torch.ones(3)).tolist() == [4.0, 4.0, 4.0]


def test_other_dtypes_and_autocast_are_no_change() -> None:
    program = torch.export.export(Model(scale), (torch.ones(3),)).module()
    assert program(torch.ones(3, dtype=torch.float64)).dtype == torch.float64
    x = torch.ones(3, requires_grad=True)
    (grad,) = torch.autograd.grad(program(x).sum(), x)
    assert grad.tolist() == [3.0, 3.0, 3.0]

    @ow.op(name="exported_mm", opaque=True)
    def mm(x: Tensor, by: float) -> Tensor:
        return x @ x * by

    program = torch.export.export(Model(mm), (torch.ones(3, 3),)).module()
    with torch.autocast("cpu", torch.bfloat16):
        assert program(torch.ones(3, 3)).dtype == torch.bfloat16


def test_a_compiled_program_holds_its_operators_too(monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(Model(scale), (torch.ones(3),))
    for node in program.graph.nodes:
        if "opwright_exported.schema" in str(node.target):
            node.args = (node.args[0], node.args[1].replace("by", "times"))
    program.graph_module.recompile()
    with pytest.raises(RuntimeError, match="is not what it was when this program was exported"):
        program.run_decompositions()


FORCES = """
import sys, torch, opwright as ow

@ow.op(opaque=True, namespace="user")
def energy(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) * 2

class Force(torch.nn.Module):
    def forward(self, x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(energy(x).sum(), x)[0]

file, what = sys.argv[1:]
if what == "save":
    torch.export.save(torch.export.export(Force(), (torch.ones(3),), strict=False), file)
else:
    assert not hasattr(torch.ops.user, "nobody_backward")
    print(torch.export.load(file).module()(torch.zeros(3)).tolist())
"""


@pytest.mark.slow
def test_a_program_with_a_gradient_in_it_is_loaded_where_nobody_has_asked_for_that(tmp_path: Path) -> None:
    """The gradient is an operator that is made when it is first wanted, or named."""

    def run(what: str) -> str:
        command = [sys.executable, "-c", FORCES, str(tmp_path / "force.pt2"), what]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("save")
    assert run("load").strip() == "[2.0, 2.0, 2.0]"
