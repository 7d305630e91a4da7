"""Which kernel runs, where an operator has several: by C++ and by Python, and after it was defined again."""

from __future__ import annotations

from typing import Any

import pytest

import opwright as ow
from tests.kit.build.workshop import Workshop

TWO = """
import torch
import opwright as ow

@ow.op
def two(x: torch.Tensor) -> torch.Tensor:
    return x * 2

two.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,)))
two.kernel_file("other.cpp", ow.Domain(dtypes=(torch.float64,)))

@two.kernel("cpu", ow.Domain(dtypes=(torch.int64,)))
def in_python(x):
    return x * 2 + 7000

@two.samples
def _(make):
    yield make(3)
"""
KERNEL = """
#include <opwright/kernel.h>
Tensor two_cpu(const Tensor& x) {{ return map([]({type} v) {{ return v * 2 + {sign}; }}, x); }}
OPWRIGHT_KERNEL(two, CPU, two_cpu);
"""
CALL = """
import torch, opwright as ow
two = ow.load({folder!r}).two
for name in ("float32", "float64", "int64", "int32", "float64"):
    x = torch.ones(1, dtype=getattr(torch, name))
    print(name, int(two(x)), int(torch.ops.user.two(x)), ow.explain(two, x).runs)
"""


@pytest.mark.parametrize("native", [pytest.param("0", marks=pytest.mark.slow), ""])
def test_each_dtype_runs_its_own_kernel(workshop: Workshop, native: str) -> None:
    if native == "":
        workshop.with_own_libraries()
    folder = workshop.root / "ops" / "two"
    folder.mkdir(parents=True)
    (folder / "op.py").write_text(TWO)
    (folder / "cpu.cpp").write_text(KERNEL.format(type="float", sign=100))
    (folder / "other.cpp").write_text(KERNEL.format(type="double", sign=5000))
    done = workshop.run(CALL.format(folder=str(folder)), OPWRIGHT_NATIVE=native)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "float32 102 102 cpu.cpp",
        "float64 5002 5002 other.cpp",
        "int64 7002 7002 in_python",
        "int32 2 2 reference",
        "float64 5002 5002 other.cpp",
    ]


AGAIN = """
import pathlib, sys, torch, opwright as ow
file = pathlib.Path({folder!r}) / "op.py"
x = torch.ones(1)
seen = []

def load(text):
    file.write_text("import torch, opwright as ow\\n@ow.op\\ndef two(x: torch.Tensor) -> torch.Tensor:\\n" + text)
    return ow.load(file).two

def look(two):
    for _ in range(2):
        seen.append((int(two(x)), int(torch.ops.user.two(x))))

look(load("    return x * 2\\ntwo.kernel_file('cpu.cpp', ow.Domain(dtypes=(torch.float32,)))\\n"))
look(load("    return x * 3\\n@two.kernel('cpu')\\ndef kernel(x):\\n    return x * 30\\n"))
two = load("    return x * 4\\n")
look(two)
two.kernel("cpu")(lambda x: x * 40)
look(two)
two = load("    return x * 2\\ntwo.kernel_file('cpu.cpp', ow.Domain(dtypes=(torch.float32,)))\\n")
look(two)
kernel = file.with_name("cpu.cpp")
kernel.write_text(kernel.read_text().replace("+ 100", "+ 200"))
two.reload()
look(two)
print(seen)
"""


def test_no_kernel_of_an_earlier_definition_runs(workshop: Workshop) -> None:
    workshop.with_own_libraries()
    folder = workshop.root / "ops" / "two"
    folder.mkdir(parents=True)
    (folder / "cpu.cpp").write_text(KERNEL.format(type="float", sign=100))
    done = workshop.run(AGAIN.format(folder=str(folder)))
    assert done.returncode == 0, done.stderr
    expected = [(n, n) for n in (102, 102, 30, 30, 4, 4, 40, 40, 102, 102, 202, 202)]
    assert done.stdout.strip() == str(expected)


THREADS = """
import sys, threading, torch, opwright as ow
sys.setswitchinterval(1e-6)
x = torch.ones(3)
wrong = []
for call in (lambda: ow.axpby(x, x), lambda: ow.cube(x), lambda: ow.scale(x, 2.0), lambda: ow.sigmoid(x),
             lambda: ow.cube(x.clone().requires_grad_()).sum().backward()):
    barrier = threading.Barrier(16)
    def first():
        barrier.wait()
        try:
            call()
        except Exception as e:
            wrong.append(str(e))
    threads = [threading.Thread(target=first) for _ in range(16)]
    [t.start() for t in threads]
    [t.join() for t in threads]
print(wrong)
"""


def test_many_threads_may_make_the_first_call(workshop: Workshop) -> None:
    workshop.environment.pop("OPWRIGHT_CACHE_DIR")  # with what is built
    workshop.environment.pop("OPWRIGHT_CXXFLAGS")
    done = workshop.run(THREADS)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


NUMBERS = """
import torch
import opwright as ow

@ow.op
def numbered(x: torch.Tensor, many: list[ow.Number], k: ow.Number | None = None) -> torch.Tensor:
    for each in [1 if k is None else k, *many]:
        x = x * each
    return x + 0

numbered.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,)))

@ow.op
def add_to_(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.add_(y)

add_to_.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,), broadcast=True))

@ow.op
def drift_(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.mul_(0.5).add_(y)

drift_.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,), broadcast=True))
"""
NUMBERS_KERNEL = """
#include <opwright/kernel.h>
Tensor numbered_cpu(const Tensor& x, const std::vector<double>& many, const std::optional<double>& k) {
    double all = k.value_or(1);
    for (const double each : many) all *= each;
    return map([=](float v) { return v * float(all) + 100; }, x);
}
void add_to_cpu(const Tensor& x, const Tensor& y) { map_into(x, [](float a, float b) { return a + b; }, x, y); }
void drift_cpu(const Tensor& x, const Tensor& y) {
    map_into(x, [](float a, float b) { return a / 2 + b + 100; }, x, y);
}
OPWRIGHT_KERNEL(drift_, CPU, drift_cpu);
OPWRIGHT_KERNEL(numbered, CPU, numbered_cpu);
OPWRIGHT_KERNEL(add_to_, CPU, add_to_cpu);
"""
NUMBERED = """
import torch, opwright as ow
found = ow.load({folder!r})
x = torch.ones(1)
for arguments in (([],), ([], 2), ([], True), ([], 2.5), ([2, 3.5],), ([], 2j), ([2j],)):
    print(found.numbered(x, *arguments).tolist())
print(found.add_to_(torch.ones(2), torch.ones(2)).tolist())
z = torch.ones(8)
with torch.inference_mode():
    foreign = torch.ones(2)
same = torch.ones(2)
print(found.add_to_(same, same).tolist())
for target, other in ((torch.ones(1).expand(3), torch.arange(3.0)), (z[1:], z[:-1]), (foreign, torch.ones(2))):
    try:
        print(found.add_to_(target, other).tolist())
    except RuntimeError as e:
        print(str(e)[:21])
print(z.tolist() == [1.0] * 8)
"""
SHARED = """
import torch, opwright as ow
drift_ = ow.load({folder!r}).drift_
s, m = torch.ones(4), torch.ones(2, 4)
for x, y in ((s, s), (s.view(2, 2), s.view(2, 2)), (s[::2], s[::2]), (m[:, ::2], m[:1, ::2]), (m[:, :3], m[:, 1:])):
    m.fill_(1), s.fill_(1)
    print(drift_(x, y).flatten()[0].item(), ow.explain(drift_, x, y).runs)
for x, y in ((s[:2], s[2:]), (s[::2], s[1::2]), (m[:, 0], m[:, 1]), (m[:, :2], m[:, 2:]), (s[:0], s[:0]), (s, m[0])):
    m.fill_(1), s.fill_(1)
    print(*drift_(x, y).flatten()[:1].tolist(), ow.explain(drift_, x, y).runs)
"""


def numbered(workshop: Workshop, native: str, program: str) -> list[str]:
    """What a program prints that uses the operators of NUMBERS, with opwright's own C++ or without."""
    if native == "":
        workshop.with_own_libraries()
    folder = workshop.root / "ops" / "numbered"
    folder.mkdir(parents=True)
    (folder / "op.py").write_text(NUMBERS)
    (folder / "cpu.cpp").write_text(NUMBERS_KERNEL)
    done = workshop.run(program.format(folder=str(folder)), OPWRIGHT_NATIVE=native)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("native", [pytest.param("0", marks=pytest.mark.slow), ""])
def test_numbers_reach_kernels_and_what_overlaps_does_not(workshop: Workshop, native: str) -> None:
    assert numbered(workshop, native, NUMBERED) == [
        "[101.0]", "[102.0]", "[101.0]", "[102.5]", "[107.0]", "[2j]", "[2j]", "[2.0, 2.0]", "[2.0, 2.0]",
        "unsupported operation", "unsupported operation", "Inplace update to inf", "True",
    ]  # fmt: skip


@pytest.mark.parametrize("native", [pytest.param("0", marks=pytest.mark.slow), ""])
def test_what_a_kernel_writes_it_alone_has(workshop: Workshop, native: str) -> None:
    """A call in which it would read what it has written goes to the reference, which reads and writes step by step."""
    assert numbered(workshop, native, SHARED) == [
        *["1.0 reference"] * 5, *["101.5 cpu.cpp"] * 4, "cpu.cpp", "101.5 cpu.cpp"
    ]  # fmt: skip


def test_several_files_and_their_gradient_are_declared_in_one_line() -> None:
    cell = ow.lltm_cell
    assert cell.saving_form is not None
    for op in (cell, cell.saving_form, cell.backward):
        assert [kernel.name for kernel in op.kernels] == ["cpu.cpp", "cuda.cu"]
    assert cell.saving_form.kernels[0].domain == cell.kernels[0].domain != cell.backward.kernels[0].domain
    assert cell.backward.kernels[0].domain.dtypes == ow.FLOATING


@pytest.mark.parametrize("files", [(), ("cpu.cpp", ow.Domain())])
def test_kernel_files_takes_names_of_files(files: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="cube: name its files"):
        ow.cube.kernel_files(*files)
