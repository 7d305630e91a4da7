"""CUDA kernels compile where there is nvcc, whether or not there is a GPU; and what fits together is known."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import opwright as ow
from opwright.kit.build import compile, cuda, fatbin, prebuilt
from opwright.kit.build.bound import Bound
from opwright.kit.build.library import Library
from opwright.kit.build.trouble import BuildError, Unavailable
from opwright.kit.dispatch import registry
from opwright.kit.doctor import cuda as doctor_cuda
from opwright.kit.spec.options import Options
from tests.kit.build.nvcc import needs_nvcc

EXAMPLES = Path(__file__).parents[3] / "examples" / "kernels"
ARCH = {"OPWRIGHT_CUDA_ARCH": "9.0"}

# Every header and every kind of kernel, in one source: elementwise with numbers, several results, sums, packed
# accessors, launches of one's own.
EVERYTHING = """
#include <opwright/kernel.h>
template <class T, class I>
__global__ void flip(Packed<const T, 1, I> x, Packed<T, 1, I> out) {
    const I i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < x.size(0)) out(i) = x(x.size(0) - 1 - i);
}
Tensor everything(const Tensor& x, double a) {
    Tensor out = empty(with_number(x), dtype(x)), other = empty(with_number(x), dtype(x));
    map_into(into(out, other), [] __device__(auto x, auto a) { return several(a * x, simd::exp(x)); }, x, a);
    Layout one;
    const Tensor sum = sum_to(one, [] __device__(auto x) { return x * x; }, x);
    const Tensor dot = sum_to(one, [] __device__(auto x, auto y) { return x * y; }, x, other);
    map_into(Types<float, int32_t>(), out, [] __device__(auto x, auto y) { return x + y; }, out, sum);
    with_index([&](auto zero) {
        using I = decltype(zero);
        launch(flip<float, I>, {ceil_div(x.numel(), 128), 128}, packed<const float, 1, I>(x), packed<float, 1, I>(out));
    }, x, out);
    float* p = data<float>(out);
    for_each(out.numel(), [=] __device__(int64_t i) { p[i] += 1; });
    return out;
}
OPWRIGHT_KERNEL(everything, CUDA, everything);
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cuda")


def library(folder: Path, source: str, **options: Any) -> Library:
    (folder / "cuda.cu").write_text(source)
    return Library(folder / "cuda.cu", "compiled", Options(arch=("9.0",), **options), "cuda")


@pytest.mark.slow
@needs_nvcc
def test_the_kernels_of_the_page_about_cuda_compile(folder: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "cuda.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```cuda\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(shown) == 2
    for source in shown:
        assert fatbin.code_in(compile.build(library(folder, source).plan()).library) == ("9.0",)


@needs_nvcc
def test_every_part_of_the_header_compiles_without_a_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPWRIGHT_CUDA_ARCH", raising=False)
    made = library(folder, EVERYTHING)
    assert made.plan().arch == ("9.0",)
    entry = compile.build(made.plan())
    assert fatbin.code_in(entry.library) == ("9.0",)
    assert entry.about["arch"] == ["9.0"]
    assert entry.about["cuda"] == list(cuda.nvcc().release)
    line = str(1 + EVERYTHING[: EVERYTHING.index("OPWRIGHT_KERNEL(")].count("\n"))
    assert entry.about["kernels"] == [["everything", "cuda", "everything", "cuda.cu", line, "Tensor", "Tensor,float"]]


@needs_nvcc
def test_a_kernel_of_other_types_is_told_where_there_is_no_gpu(tmp_path: Path) -> None:
    folder = tmp_path / "saxpy"
    shutil.copytree(EXAMPLES / "saxpy", folder)
    source = folder / "bind.cpp"
    source.write_text(source.read_text().replace("double a", "int64_t a"))
    done = subprocess.run(
        [sys.executable, "-m", "opwright", "build", str(folder), "--device", "cuda"],
        capture_output=True, text=True, env={**os.environ, **ARCH}, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "saxpy: saxpy_cuda in " in done.stderr
    assert "needs `Tensor saxpy_cuda(" in done.stderr
    assert "0 of 1 libraries are built" in done.stderr


@needs_nvcc
@pytest.mark.parametrize("name", ["outer", "saxpy", "row_norms"])
def test_the_examples_compile_without_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWRIGHT_CUDA_ARCH", "9.0")
    op = getattr(ow.load(EXAMPLES / name), name)
    (kernel,) = op.kernels
    entry = compile.build(kernel.library.plan())
    assert kernel.device == "cuda"
    assert fatbin.code_in(entry.library) == ("9.0",)
    if name == "saxpy":
        assert b"torch" not in (EXAMPLES / name / "saxpy.cu").read_bytes()


@needs_nvcc
@pytest.mark.parametrize("kind", [(), pytest.param(("--rows",), marks=pytest.mark.slow)])
def test_the_scaffolded_kernel_compiles_and_binds(kind: tuple[str, ...], tmp_path: Path) -> None:
    environment = {**os.environ, **ARCH}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "opwright", *arguments], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    run("new", "swish", "--cuda", *kind, "--path", str(tmp_path))
    said = run("build", str(tmp_path / "swish"), "--device", "cuda", "--to", str(tmp_path / "made"))
    assert "1 of 1 libraries are built" in said
    (place,) = (tmp_path / "made" / "entries").iterdir()
    assert fatbin.code_in(place / "library.so") == ("9.0",)
    assert "/" not in (place / "about.json").read_text().replace("swish/cuda.cu", "").replace("x86_64", "")


@needs_nvcc
def test_the_example_of_the_documents_compiles(folder: Path) -> None:
    text = (EXAMPLES.parents[1] / "docs" / "cuda.md").read_text(encoding="utf-8")
    first, *_ = re.findall(r"^```cuda\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    compile.build(library(folder, first).plan())


@needs_nvcc
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_kernel_of_the_library_compiles_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.broken_ops.cuda import BROKEN_ON_CUDA

    monkeypatch.setenv("OPWRIGHT_CUDA_ARCH", "9.0")
    assert all(broken.op for broken in BROKEN_ON_CUDA)
    made = {k.library for op in registry.operators() for k in op.kernels if k.library and k.device == "cuda"}
    assert len(made) >= 6
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for entry in pool.map(lambda each: compile.build(each.plan()), made):
            assert fatbin.code_in(entry.library) in ((), ("9.0",))
            assert entry.about["kernels"]
    for op in registry.operators():
        for kernel in op.kernels:
            if kernel.library in made:
                kernel.library.bound = [Bound(*row) for row in compile.build(kernel.library.plan()).about["kernels"]]
                kernel.refuse_other_types(op)


@needs_nvcc
def test_a_mistake_in_a_cu_file_shows_its_line(folder: Path) -> None:
    made = library(folder, EVERYTHING.replace("x(x.size(0) - 1 - i)", "no_such_thing(i)"))
    with pytest.raises(BuildError, match=r"cuda\.cu\(6\): error: .*no_such_thing"):
        compile.build(made.plan())


@needs_nvcc
def test_an_unknown_architecture_is_a_clear_error(folder: Path) -> None:
    (folder / "cuda.cu").write_text(EVERYTHING)
    made = Library(folder / "cuda.cu", "compiled", Options(arch=("3.0",)), "cuda")
    with pytest.raises(BuildError, match="Unsupported gpu architecture"):
        compile.build(made.plan())
    with pytest.raises(ValueError, match=r"an architecture is written 9\.0, 9\.0a or 9\.0\+PTX, got 'fast'"):
        _ = Library(folder / "cuda.cu", "compiled", Options(arch=("fast",)), "cuda").plan().arch


def test_a_prebuilt_library_is_found_by_content_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's libraries travel too; those of a GPU are tried in tests/cuda."""
    (tmp_path / "cpu.cpp").write_text("int answer() { return 42; }\n")
    made = Library(tmp_path / "cpu.cpp", "compiled", Options())
    plan = made.plan()
    entry = compile.build(plan)
    prebuilt.write(plan, entry, tmp_path / "made")
    monkeypatch.setenv("OPWRIGHT_PREBUILT", str(tmp_path / "made"))
    monkeypatch.setenv("CXX", "another-compiler")
    found = prebuilt.look_up(made.plan())
    assert found is not None
    assert found.about["key"] == plan.key
    owner = os.stat(tmp_path).st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    if owner == 0:  # what the administrator put there is for everybody
        assert prebuilt.look_up(made.plan()) is not None
    else:
        with pytest.raises(Unavailable, match=r"belongs to another user.*set OPWRIGHT_PREBUILT to a folder of yours"):
            prebuilt.look_up(made.plan())
    monkeypatch.setattr(os, "getuid", lambda: owner)
    (tmp_path / "made" / "entries").chmod(0o777)
    with pytest.raises(Unavailable, match=r"can be written by others.*or set OPWRIGHT_PREBUILT to another folder"):
        prebuilt.look_up(made.plan())
    (tmp_path / "made" / "entries").chmod(0o755)
    (tmp_path / "cpu.cpp").write_text("int answer() { return 43; }\n")
    assert prebuilt.look_up(made.plan()) is None


def test_architectures_come_from_who_knows_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPWRIGHT_CUDA_ARCH", raising=False)
    monkeypatch.setattr(cuda, "gpus", lambda: [cuda.Gpu("A", (8, 6)), cuda.Gpu("B", (9, 0)), cuda.Gpu("B", (9, 0))])
    assert cuda.architectures() == ("8.6", "9.0+PTX")
    assert cuda.architectures(("12.0",)) == ("12.0",)
    monkeypatch.setenv("OPWRIGHT_CUDA_ARCH", "sm_80;9.0a, 100+PTX")
    assert cuda.architectures(("12.0",)) == ("8.0", "9.0a", "10.0+PTX")
    monkeypatch.setattr(cuda, "gpus", list)
    monkeypatch.setenv("OPWRIGHT_CUDA_ARCH", "native")
    with pytest.raises(Unavailable, match="there is no GPU here to build for"):
        cuda.architectures()
    monkeypatch.delenv("OPWRIGHT_CUDA_ARCH")
    assert cuda.architectures() == cuda.WITHOUT_GPU


@pytest.mark.parametrize(
    "archs, capability, runs",
    [
        (["9.0"], (9, 0), True),
        (["8.0", "9.0"], (8, 9), True),
        (["9.0"], (10, 0), False),
        (["9.0+PTX"], (12, 1), True),
        (["9.0a"], (9, 0), True),
        (["9.0a+PTX"], (10, 0), False),
        (["10.0f"], (10, 3), True),
        (["12.0+PTX"], (9, 0), False),
        ([], (9, 0), False),
    ],
)
def test_which_code_runs_where(archs: list[str], capability: tuple[int, int], runs: bool) -> None:
    assert cuda.runs_on(archs, capability) == runs


def test_a_library_for_other_gpus_is_refused_with_what_fixes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "gpus", lambda: [cuda.Gpu("NVIDIA H200", (9, 0))])
    cuda.refuse_foreign_code("mine", ["9.0"])
    cuda.refuse_foreign_code("mine", [])
    with pytest.raises(Unavailable) as raised:
        cuda.refuse_foreign_code("mine", ["8.0", "10.0+PTX"])
    said = "mine has code for 8.0, 10.0+PTX and none for the NVIDIA H200 (compute capability 9.0) here; "
    assert str(raised.value) == said + "build it with `OPWRIGHT_CUDA_ARCH='9.0' opwright build --device cuda`"


@pytest.mark.parametrize(
    "nvcc, torch_cuda, driver, stable, says",
    [
        ((13, 0), "13.0", (13, 0), True, None),
        ((13, 0), None, None, True, None),
        ((12, 8), "13.0", (13, 0), True, "nvcc is CUDA 12.8, torch is CUDA 13.0: this works"),
        ((13, 1), "13.0", (13, 0), True, "this works"),
        ((12, 8), "12.6", (13, 0), False, "minor versions are compatible"),
        ((12, 8), "13.0", (13, 0), False, "BuildError: .*needs the same major version; install a CUDA 13 toolkit"),
        ((13, 0), "12.8", (12, 8), True, "Unavailable: nvcc is CUDA 13.0 and the driver knows CUDA 12.8"),
    ],
)
def test_versions_that_disagree_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, nvcc: Any, torch_cuda: str | None, driver: Any, stable: bool, says: str | None
) -> None:
    monkeypatch.setattr(torch.version, "cuda", torch_cuda)
    monkeypatch.setattr(cuda, "driver", lambda: driver)
    error, _, text = (says or "").rpartition(": ") if says and says.split(":")[0].isalpha() else ("", "", says)
    if error:
        kinds = {"BuildError": BuildError, "Unavailable": Unavailable}
        with pytest.raises(kinds[error], match=text):
            cuda.compare_versions(stable, nvcc)
    else:
        note = cuda.compare_versions(stable, nvcc)
        assert (note is None) if text is None else (note is not None and text in note)


def test_of_several_nvccs_one_that_the_driver_can_run_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("12.8", "13.0"):
        home = tmp_path / version
        (home / "bin").mkdir(parents=True)
        (home / "include").mkdir()
        (home / "include" / "cuda_runtime_api.h").touch()
        script = home / "bin" / "nvcc"
        script.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.1'\n")
        script.chmod(0o755)
    nvccs = [str(tmp_path / v / "bin" / "nvcc") for v in ("13.0", "12.8")]
    monkeypatch.setattr(cuda, "_search", lambda path: iter(nvccs))
    for known, expected in (((12, 4), "12.8"), ((13, 0), "13.0"), (None, "13.0")):
        monkeypatch.setattr(cuda, "driver", lambda known=known: known)
        cuda._choose.cache_clear()
        found = cuda._choose("", "", "", "")
        assert (found.home, found.release) == (tmp_path / expected, tuple(map(int, expected.split("."))))
    assert cuda._choose("", str(tmp_path / "12.8"), "", "").home == tmp_path / "12.8"
    with pytest.raises(Unavailable, match="which NVCC names"):
        cuda._choose("no-such-nvcc", "", "", "")
    monkeypatch.setattr(cuda, "_search", lambda path: iter(()))
    cuda._choose.cache_clear()
    with pytest.raises(Unavailable, match="there is no nvcc; install the CUDA toolkit"):
        cuda._choose("", "", "", "")
    cuda._choose.cache_clear()


@pytest.mark.parametrize(
    "said, fix",
    [
        ("CUDA error: an illegal memory access was encountered", "OPWRIGHT_CUDA_SYNC=1"),
        ("CUDA error: no kernel image is available for execution on the device", "no code for this GPU"),
        ("CUDA driver version is insufficient for CUDA runtime version", "update it, or build with an older"),
        ("nvcc fatal : Unsupported gpu architecture 'compute_30'", "ask for another --arch"),
        ("#error -- unsupported GNU version! gcc versions later than 15", "set CXX to an older one"),
        ("something else", "not one that is known"),
    ],
)
def test_the_doctor_explains_errors_of_cuda(said: str, fix: str) -> None:
    assert fix in doctor_cuda.explain_error(said).fix


def test_the_doctor_speaks_of_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> Any:
        raise Unavailable("there is no nvcc; install the CUDA toolkit")

    monkeypatch.setattr(cuda, "nvcc", nothing)
    found = {f.what: f for f in doctor_cuda.examine()}
    assert found["nvcc"].verdict == "missing"
    assert "install the CUDA toolkit" in found["nvcc"].fix
    assert found["CUDA kernels"].verdict == "missing"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cuda, "driver", lambda: (12, 4))
    found = {f.what: f for f in doctor_cuda.examine()}
    assert found["GPU"].found == "torch is CUDA 13.0, the driver knows CUDA 12.4 only"
