"""Operators in C++ programs without Python: the example's numbers, gradients, and what only Python can do."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

import opwright as ow
from tests.kit.cpp import workplace

pytestmark = [workplace.needs_cmake, pytest.mark.slow]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workplace.built(workplace.EXAMPLE, tmp_path_factory.mktemp("example"))


def wave(sizes: tuple[int, ...], step: float) -> torch.Tensor:
    return torch.arange(int(torch.tensor(sizes).prod()), dtype=torch.float32).mul(step).sin().reshape(sizes)


def train() -> list[tuple[str, list[float]]]:
    """What examples/cpp/train.cpp does, in Python."""
    x, y = wave((16,), 0.3), wave((16,), 0.7)
    lines = [("axpby", ow.axpby(x, y, a=2, b=0.5))]
    cell_weight = wave((12, 6), 0.37).mul(0.5).requires_grad_()
    parameters = [
        cell_weight,
        *(wave(s, by).requires_grad_() for s, by in (((12,), 0.11), ((1, 4), 0.53), ((1,), 0.7))),
    ]
    inputs, wanted = wave((5, 3, 2), 0.2), wave((3, 1), 1.3)
    for _ in range(5):
        h, c = torch.zeros(3, 4), torch.zeros(3, 4)
        for step in inputs.unbind():
            h, c = ow.lltm_cell(step, parameters[0], parameters[1], h, c)
        loss = (ow.linear(h, parameters[2], parameters[3]) - wanted).square().mean()
        lines.append(("loss", loss))
        loss.backward()
        for p in parameters:
            with torch.no_grad():
                p.copy_(ow.axpby(p, p.grad, b=-0.1))
            p.grad = None
    return [
        (name, t.detach().double().flatten().tolist()) for name, t in [*lines, *(("parameter", p) for p in parameters)]
    ]


def test_a_program_trains_to_the_numbers_of_python(example: Path) -> None:
    done = workplace.run(str(example / "train"))
    assert done.returncode == 0, done.stderr
    *lines, refused = done.stdout.splitlines()
    found = [(line.split()[0], [float.fromhex(word) for word in line.split()[1:]]) for line in lines]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert found == train()  # to the bit
    finally:
        torch.set_num_threads(threads)
    assert refused.startswith(
        "refused: opwright::linear: x is Int[16] on cpu; its kernel for CPU takes tensors of one of float32"
    )
    assert "Python" not in done.stderr


def test_a_program_with_an_operator_of_its_own(tmp_path: Path) -> None:
    done = workplace.run(str(workplace.built(workplace.EXAMPLE / "own", tmp_path) / "program"))
    assert done.returncode == 0, done.stderr
    swish = ow.load(workplace.EXAMPLE / "own" / "swish").swish
    x = torch.linspace(-2, 2, 5, dtype=torch.float64).requires_grad_()
    y = swish(x, beta=2.0)
    y.sum().backward()
    assert x.grad is not None
    wanted = [tuple(row) for row in torch.stack((y.detach(), x.grad), 1).tolist()]
    assert [tuple(map(float.fromhex, line.split())) for line in done.stdout.splitlines()] == wanted


ORDERS = """
import sys, warnings
import torch
warnings.simplefilter("error")
library, order = sys.argv[1:]
x = torch.linspace(-1, 1, 16)

def load():
    torch.ops.load_library(library)

def says(call):
    try:
        return call()
    except Exception as e:
        return f"{type(e).__name__}: {e}".splitlines()[0]

if order == "C++ first":
    load()
    print("alone", torch.ops.opwright_native.is_alone("opwright::axpby"))
    print(says(lambda: torch.ops.opwright.axpby(x.int(), x.int(), a=2.5)))
    print(says(lambda: torch.ops.opwright.linear(x.to("meta"), x.to("meta"))))
    g = x.clone().requires_grad_()
    torch.ops.opwright.axpby(g, x, a=3).sum().backward()
    assert g.grad.eq(3).all()
    import opwright as ow
else:
    import opwright as ow
    if order == "Python first, and called":
        ow.axpby(x.clone().requires_grad_(), x, a=3).sum().backward()
    load()
    load()  # again
assert not torch.ops.opwright_native.is_alone("opwright::axpby")
assert ow.axpby(x, x, a=2).equal(3 * x)
assert ow.axpby(x.int(), x.int(), a=2.5).dtype == torch.float32  # the reference
for call in (ow.axpby, torch.ops.opwright.axpby):
    g = x.clone().requires_grad_()
    call(g, x, a=3).sum().backward()
    assert g.grad.eq(3).all()
assert torch.func.grad(lambda t: ow.axpby(t, x, a=3).sum())(x).eq(3).all()
w = torch.randn(4, 16, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradgradcheck(lambda w: ow.linear(x.double(), w), w)
state = torch.randn(2, 4)
h, _ = ow.lltm_cell(torch.randn(2, 3), torch.randn(12, 7, requires_grad=True), None, state, state)
h.sum().backward()
assert torch.compile(lambda t: ow.axpby(t, x, a=3) * 2, backend="aot_eager")(x).equal(8 * x)
print("kernel", [k.state for k in ow.axpby.kernels if k.device == "cpu"])
"""


@pytest.mark.parametrize("order", ["C++ first", "Python first", "Python first, and called"])
def test_one_process_has_both_in_either_order(example: Path, order: str) -> None:
    done = workplace.run(sys.executable, "-c", ORDERS, str(example / "librecurrent.so"), order)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert said[-1] == "kernel ['built']"
    assert "recurrent: " not in done.stderr  # nothing stands in the way of the library
    if order == "C++ first":
        assert said[0] == "alone True"
        assert said[1].startswith("NotImplementedError: opwright::axpby: x is Int[16] on cpu; its kernel for CPU takes")
        assert said[2].startswith("NotImplementedError: opwright::linear: it has no kernel for tensors on meta")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.timeout(600)
def test_the_example_is_compiled_for_gpus(tmp_path: Path) -> None:
    build = workplace.built(workplace.EXAMPLE, tmp_path, "-DWITH_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=90")
    libraries = sorted(build.glob("librecurrent_*.so"))
    assert len(libraries) == 6  # one for each kernel file
    # CUDA's runtime is inside: another torch may bring another one, and one for CPUs brings none.
    missing = {each.name: workplace.run("nm", "-D", "--undefined-only", str(each)).stdout for each in libraries}
    assert [name for name, said in missing.items() if " cuda" in said] == []
    # Where there is no GPU, the rest of it runs.
    assert workplace.run(str(build / "train")).stdout.startswith("axpby 0x0p+0")
