"""A kernel's C++ types are held against its schema: when it is compiled, when it is built, and when it is loaded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.build.bound import Bound, mismatch
from tests.kit.build.test_header import compiled
from tests.kit.build.workshop import KERNEL_RAN, Workshop

HERE = Path(__file__).parent

# Every kind of argument that a kernel can take, and what it makes of them.
EVERY = """
import torch
import opwright as ow

@ow.op
def every(
    x: torch.Tensor, y: torch.Tensor | None, xs: list[torch.Tensor], i: int, j: int | None, ints: list[int],
    a: float, b: float | None, floats: list[float], n: ow.Number, m: ow.Number | None, yes: bool, flags: list[bool],
    word: str, other: str | None, dtype: torch.dtype, device: torch.device, layout: torch.layout,
    format: torch.memory_format,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return x + 1.0, [x + 2.0]

@ow.op(mutates=["out"])
def fill(out: torch.Tensor, x: torch.Tensor) -> None:
    out.copy_(x + 1)

@ow.op
def fill_(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return out.copy_(x + 1)

for op in (every, fill, fill_):
    op.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,)))
"""
EVERY_CPU = """
#include <opwright/kernel.h>

std::tuple<Tensor, std::vector<Tensor>> every_cpu(
    const Tensor& x, const std::optional<Tensor>& y, std::vector<Tensor> xs, int64_t i, std::optional<int64_t> j,
    const std::vector<int64_t>& ints, double a, std::optional<double> b, const std::vector<double>& floats, double n,
    std::optional<double> m, bool yes, const std::vector<bool>& flags, const std::string& word,
    const std::optional<std::string>& other, DType dtype, torch::stable::Device device,
    torch::headeronly::Layout layout, torch::headeronly::MemoryFormat format) {
    const bool right = !y && xs.size() == 2 && i == 3 && !j && ints == std::vector<int64_t>{4, 5} && a == 6.5 &&
                       b == 7.5 && floats == std::vector<double>{8.5} && n == 9 && m == 10.5 && yes &&
                       flags == std::vector<bool>{true, false} && word == "word" && !other && dtype == DType::Half &&
                       layout == torch::headeronly::Layout::Strided;
    check(right, "every: an argument is not what was passed");
    return {map([](float v) { return v + 100; }, x), {xs[1]}};
}
void fill_out(Tensor& out, const Tensor& x) { map_into(out, [](float v) { return v + 100; }, x); }
void fill_in_place(const Tensor& out, Tensor x) { map_into(out, [](float v) { return v + 200; }, x); }

OPWRIGHT_KERNEL(every, CPU, every_cpu);
OPWRIGHT_KERNEL(fill, CPU, fill_out);
OPWRIGHT_KERNEL(fill_, CPU, fill_in_place);
"""


def test_arguments_of_every_kind_arrive(workshop: Workshop) -> None:
    (workshop.root / "op.py").write_text(EVERY, encoding="utf-8")
    (workshop.root / "cpu.cpp").write_text(EVERY_CPU, encoding="utf-8")
    done = workshop.run(f"""
        import torch, opwright as ow
        ops = ow.load({str(workshop.root / "op.py")!r})
        x = torch.ones(1)
        first, [second] = ops.every(
            x, None, [x, x * 7], 3, None, [4, 5], 6.5, 7.5, [8.5], 9, 10.5, True, [True, False], "word", None,
            torch.float16, torch.device("cpu"), torch.strided, torch.contiguous_format,
        )
        out = torch.zeros(1)
        ops.fill(out, x)
        print(first.item(), second.item(), out.item(), ops.fill_(out, x).item(), out.item())
    """)
    assert done.stdout.split() == ["101.0", "7.0", "101.0", "201.0", "201.0"], done.stderr


WRONG = """
import torch
import opwright as ow
from torch import Tensor

DOMAIN = ow.Domain(dtypes=(torch.float32,))

def operator(function):
    op = ow.op(function)
    op.samples(lambda make: iter([(make(3), 2.0)]))
    op.kernel_file("cpu.cpp", DOMAIN)
    return op

@operator
def integer(x: Tensor, beta: float) -> Tensor:
    return x * beta

@operator
def tensor(x: Tensor, beta: float) -> Tensor:
    return x * beta

@operator
def optional(x: Tensor, beta: float, y: Tensor | None = None) -> Tensor:
    return x * beta

@operator
def fewer(x: Tensor, beta: float) -> Tensor:
    return x * beta

@operator
def results(x: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    return x * beta, x + beta

@operator
def missing(x: Tensor, beta: float) -> Tensor:
    return x * beta

@operator
def fine(x: Tensor, beta: float) -> Tensor:
    return x * beta
"""
WRONG_CPU = """
#include <opwright/kernel.h>

Tensor integer_cpu(const Tensor& x, int64_t beta) { return x; }
Tensor tensor_cpu(const Tensor& x, const Tensor& beta) { return x; }
Tensor optional_cpu(const Tensor& x, double beta, const Tensor& y) { return x; }
Tensor fewer_cpu(const Tensor& x) { return x; }
Tensor results_cpu(const Tensor& x, double beta) { return x; }
Tensor fine_cpu(const Tensor& x, double beta) { return map([=](float v) { return v * float(beta); }, x); }

OPWRIGHT_KERNEL(integer, CPU, integer_cpu);
OPWRIGHT_KERNEL(tensor, CPU, tensor_cpu);
OPWRIGHT_KERNEL(optional, CPU, optional_cpu);
OPWRIGHT_KERNEL(fewer, CPU, fewer_cpu);
OPWRIGHT_KERNEL(results, CPU, results_cpu);
OPWRIGHT_KERNEL(fine, CPU, fine_cpu);
"""
SENTENCES = {
    "integer": "integer_cpu in {file}:11 takes (Tensor, int64_t) and returns Tensor; its schema "
    "integer(Tensor x, float beta) -> Tensor needs `Tensor integer_cpu(const Tensor& x, double beta)`",
    "tensor": "tensor_cpu in {file}:12 takes (Tensor, Tensor) and returns Tensor; its schema "
    "tensor(Tensor x, float beta) -> Tensor needs `Tensor tensor_cpu(const Tensor& x, double beta)`",
    "optional": "optional_cpu in {file}:13 takes (Tensor, double, Tensor) and returns Tensor; its schema "
    "optional(Tensor x, float beta, Tensor? y=None) -> Tensor needs "
    "`Tensor optional_cpu(const Tensor& x, double beta, const std::optional<Tensor>& y)`",
    "fewer": "fewer_cpu in {file}:14 takes (Tensor) and returns Tensor; its schema "
    "fewer(Tensor x, float beta) -> Tensor needs `Tensor fewer_cpu(const Tensor& x, double beta)`",
    "results": "results_cpu in {file}:15 takes (Tensor, double) and returns Tensor; its schema "
    "results(Tensor x, float beta) -> (Tensor, Tensor) needs "
    "`std::tuple<Tensor, Tensor> results_cpu(const Tensor& x, double beta)`",
    "missing": "{file} binds no kernel to it; it binds integer, tensor, optional, fewer, results, fine; "
    "add `OPWRIGHT_KERNEL(missing, CPU, your_function);`",
}


def opwright(workshop: Workshop, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opwright", *arguments],
        capture_output=True, text=True, check=False, env=workshop.environment, timeout=280,
    )  # fmt: skip


@pytest.mark.slow
def test_other_types_are_told_once_by_build_check_and_call(workshop: Workshop) -> None:
    workshop.with_own_libraries()
    operators, source = workshop.root / "op.py", workshop.root / "cpu.cpp"
    operators.write_text(WRONG, encoding="utf-8")
    source.write_text(WRONG_CPU, encoding="utf-8")
    sentences = {name: text.format(file=source) for name, text in SENTENCES.items()}

    built = opwright(workshop, "build", str(operators))
    assert built.returncode == 1
    said = sorted(line for line in built.stderr.splitlines() if " needs `" in line or "binds no kernel" in line)
    listed = re.sub("it binds [^;]*", "it binds", "\n".join(said)).splitlines()
    assert listed == sorted(re.sub("it binds [^;]*", "it binds", f"{n}: {s}") for n, s in sentences.items())

    checked = opwright(workshop, "check", str(operators), "--only", "forward", "--only", "memory")
    assert checked.returncode == 1
    assert checked.stdout.count("FAILED") == len(sentences), checked.stdout + checked.stderr
    for name, sentence in sentences.items():
        if name != "missing":
            assert f"FAILED {name} kernel: {sentence}" in checked.stdout
    # The others do not keep it from being checked.
    assert re.search(r"fine\b.*\bforward \d+, memory \d+", checked.stdout)

    called = workshop.run(f"""
        import torch, opwright as ow
        ops = ow.load({str(operators)!r})
        for name in ("integer", "tensor", "optional", "fewer", "results"):
            for call in (getattr(ops, name), getattr(torch.ops.user, name)):
                for x in (torch.ones(1), torch.ones(1, requires_grad=True)):
                    try:
                        print(call(x, 2.5))
                    except ow.BuildError as e:
                        print(e)
        print(ops.fine(torch.ones(1), 2.5).item())
    """)
    expected = [f"{name}: {s}" for name, s in sentences.items() if name != "missing" for _ in range(4)]
    assert called.stdout.splitlines() == [*expected, "2.5"], called.stderr

    # Built by now, so that explain knows before the first call.
    explained = workshop.run(f"""
        import torch, opwright as ow
        ops = ow.load({str(operators)!r})
        print(ow.explain(ops.integer, torch.ones(1), 2.5))
        print(ow.explain(ops.fine, torch.ones(1), 2.5))
        for _ in range(2):
            try:
                ops.missing(torch.ones(1), 2.5)
            except ow.BuildError as e:
                print(ow.explain(ops.missing, torch.ones(1), 2.5))
    """)
    integer, fine, *missing = explained.stdout.split("(x=float32[1] cpu, beta=2.5")[1:]
    assert "the call lies in its domain, and raises WrongKernel" in integer, explained.stderr
    assert f"raises: WrongKernel: integer: {sentences['integer']}" in integer
    assert "the call lies in its domain; built, and loaded on first use" in fine
    assert "raises" not in fine
    assert len(missing) == 2
    assert all("raises: WrongKernel: missing: " in said for said in missing)


def test_an_operator_that_is_bound_twice_is_told_with_both_lines(workshop: Workshop) -> None:
    folder = workshop.write()
    source = folder / "cpu.cpp"
    source.write_text(source.read_text() + "OPWRIGHT_KERNEL(times, CPU, times_cpu);\n")
    first = 1 + source.read_text().splitlines().index("OPWRIGHT_KERNEL(times, CPU, times_cpu);")
    said = f"it binds times on CPU twice, in cpu.cpp:{first} (to times_cpu) and cpu.cpp:{first + 1} (to times_cpu)"
    for _ in range(2):  # built, and found in the cache
        built = opwright(workshop, "build", str(folder))
        assert built.returncode == 1
        assert said in built.stderr
        assert "0 of 1 libraries are built" in built.stderr


def test_a_prebuilt_library_is_held_against_the_schema_of_today(workshop: Workshop, tmp_path: Path) -> None:
    folder, made = workshop.with_own_libraries().write(), tmp_path / "made"
    assert opwright(workshop, "build", str(folder), "--to", str(made)).returncode == 0
    elsewhere = {"OPWRIGHT_PREBUILT": str(made), "OPWRIGHT_BUILD": "0", "OPWRIGHT_CACHE_DIR": str(tmp_path / "none")}
    assert workshop.use(folder, **elsewhere).stdout.strip() == KERNEL_RAN
    operators = folder / "op.py"
    operators.write_text(operators.read_text().replace("by: ow.Number = 2", "by: int = 2"))
    done = workshop.use(folder, **elsewhere)
    assert "times: times_cpu in " in done.stderr
    assert "needs `Tensor times_cpu(const Tensor& x, int64_t by)`" in done.stderr


@pytest.mark.slow
def test_what_pytorch_itself_compares_is_told_as_well(workshop: Workshop) -> None:
    folder = workshop.write(options='abi="aten"')
    (folder / "cpu.cpp").write_text("""
        #include <ATen/core/Tensor.h>
        #include <torch/library.h>
        at::Tensor times_cpu(const at::Tensor& x, int64_t by) { return x; }
        TORCH_LIBRARY_IMPL(OPWRIGHT_NAMESPACE, CPU, m) {
            m.impl("times.cpu_" C10_STRINGIZE(OPWRIGHT_KEY), &times_cpu);
        }
    """)
    done = workshop.use(folder)
    assert "cpu.cpp binds a function that does not fit it" in done.stderr
    assert "Type mismatch in argument 2: float vs int" in done.stderr


REFUSED = {
    "Tensor {f}(const Tensor& x, float b) {{ return x; }}": "write double, a schema's float is a C++ double",
    "Tensor {f}(std::vector<float> b) {{ return {{}}; }}": "write double, a schema's float is a C++ double",
    "Tensor {f}(const Tensor& x, int b) {{ return x; }}": "write int64_t, a schema's int is a C++ int64_t",
    "Tensor {f}(std::optional<size_t> b) {{ return {{}}; }}": "write int64_t, a schema's int is a C++ int64_t",
    "Tensor {f}(const char* b) {{ return {{}}; }}": "it may take const Tensor&, int64_t, double, bool, std::string, D",
    "std::pair<Tensor, Tensor> {f}() {{ return {{}}; }}": "it may return Tensor, std::vector<Tensor>, a std::tuple of",
    "std::optional<Tensor> {f}() {{ return {{}}; }}": "it may return Tensor, std::vector<Tensor>, a std::tuple of",
}


def test_what_no_schema_has_does_not_compile(tmp_path: Path) -> None:
    text, expected = "#include <opwright/kernel.h>\n", []
    for i, (declaration, sentence) in enumerate(REFUSED.items()):
        text += f"{declaration.format(f=f'f{i}')}\nOPWRIGHT_KERNEL(op{i}, CPU, f{i});\n"
        expected.append(f"f{i}: {sentence}")
    text += "OPWRIGHT_KERNEL(last, CPUU, f0);\nOPWRIGHT_KERNEL(last, CUDA, f0);\n"
    expected.append("last: the device must be CPU or CUDA, got CPUU")
    expected.append("last: this file is built for the CPU; kernels for CUDA stand in a .cu file")
    said = compiled(tmp_path / "cpu.cpp", text).stderr
    for sentence in expected:
        assert sentence in said


def test_the_message_points_at_the_kernel_and_not_at_the_header(workshop: Workshop) -> None:
    folder = workshop.write()
    source = folder / "cpu.cpp"
    source.write_text(source.read_text().replace("double by", "float by"))
    done = workshop.use(folder)
    assert "cpu.cpp:10:1: error: times_cpu: write double, a schema's float is a C++ double" in done.stderr
    assert "OPWRIGHT_KERNEL(times, CPU, times_cpu);" in done.stderr


@ow.op(namespace="bound")
def complicated(x: Tensor, z: complex, xs: list[Tensor], *, k: int | None = None, word: str = "a") -> list[Tensor]:
    return [x]


@ow.op(namespace="bound", mutates=["out"])
def written(out: Tensor, dtype: torch.dtype, many: list[ow.Number]) -> None:
    out.zero_()


def test_declarations_are_spelled_as_an_author_writes_them() -> None:
    bound = Bound("written", "cpu", "f", "cpu.cpp", "7", "Tensor", "Tensor?,bool[]?,Device")
    assert mismatch(written, bound, HERE) == (
        "written: f in cpu.cpp:7 takes (std::optional<Tensor>, std::optional<std::vector<bool>>, "
        "torch::stable::Device) and returns Tensor; its schema "
        "written(Tensor(a0!) out, ScalarType dtype, Scalar[] many) -> () needs "
        "`void f(Tensor& out, DType dtype, const std::vector<double>& many)`"
    )
    found = mismatch(complicated, Bound("complicated", "cpu", "f", "cpu.cpp", "7", "", ""), HERE)
    assert found is not None
    assert found.startswith("complicated: f in cpu.cpp:7 takes () and returns void; its schema complicated(Tensor x")
    assert found.endswith("needs z, which no kernel in C++ can take")


@ow.op(namespace="bound")
def halves(x: Tensor, y: Tensor | None) -> Tensor:
    return x / 2 + (0 if y is None else y)


def test_a_gradients_wanted_is_called_so() -> None:
    rung = halves.backward
    taken = Bound(rung.name, "cpu", "f", "cpu.cpp", "7", "Tensor", "Tensor")
    assert "const Wanted& wanted)`" in str(mismatch(rung, taken, HERE)), rung.schema
