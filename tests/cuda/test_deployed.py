"""Models with operators for a GPU that leave: an exported and a compiled archive, in another Python and in C++."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.deploy import loader
from opwright.kit.dispatch import native
from tests.kit.cpp import workplace

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(native.available() is not None, reason="opwright's own C++ is not built"),
]


class Cell(torch.nn.Module):
    """A cell whose kernels are opwright's, between operators of PyTorch's that a compiler fuses."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 12 * 7).reshape(12, 7))

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        h, c = ow.lltm_cell(x * 2, self.weight, None, h, c)
        result: Tensor = ow.axpby(h, c, a=0.5) * 3
        return result


def given(rows: int) -> tuple[Tensor, ...]:
    return tuple(torch.linspace(0, 1, rows * k, device="cuda").reshape(rows, k) for k in (3, 4, 4))


def wanted() -> list[list[float]]:
    with torch.no_grad():
        return [Cell().cuda()(*given(rows)).flatten().tolist() for rows in (2, 9)]


@pytest.fixture(scope="module", params=["exported", "compiled"])
def archive(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(Cell().cuda(), given(3), dynamic_shapes=({0: rows},) * 3)
    file = tmp_path_factory.mktemp("archive") / f"{request.param}.pt2"
    return ow.package(program, file, compiled=request.param == "compiled")


LOADS = """
import importlib.util, json, sys
import torch
spec = importlib.util.spec_from_file_location("loader", sys.argv[1])
loader = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loader)
model = loader.load_package(sys.argv[2], trust=True)
model = model.module() if hasattr(model, "module") else model
for rows in (2, 9):
    given = [torch.linspace(0, 1, rows * k, device="cuda").reshape(rows, k) for k in (3, 4, 4)]
    print(json.dumps(model(*given).flatten().tolist()))
assert "opwright" not in sys.modules
try:
    torch.ops.opwright.lltm_cell(*[torch.ones(2, 2, dtype=torch.int64, device="cuda")] * 5)
except NotImplementedError as e:
    print(e)
"""


def test_an_archive_runs_in_a_process_without_opwright(archive: Path, tmp_path: Path) -> None:
    alone = shutil.copy(loader.__file__, tmp_path / "load_model.py")
    settings = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OPWRIGHT_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-X", "faulthandler", "-c", LOADS, str(alone), str(archive)]
    done = subprocess.run(command, env=settings, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    *results, refused = done.stdout.splitlines()
    torch.testing.assert_close([json.loads(each) for each in results], wanted(), rtol=1e-5, atol=1e-6)
    assert refused.startswith("opwright::lltm_cell: x is Long[2, 2] on cuda:0; its kernel for CUDA takes ")


PROGRAM = """
#include <ATen/ATen.h>
#include <opwright/package.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>

int main(int, char** argv) {
    opwright::load_operators(argv[1], opwright::Trusted());
    torch::inductor::AOTIModelPackageLoader model(argv[1]);
    for (const int64_t rows : {2, 9}) {
        std::vector<at::Tensor> given;
        for (const int64_t k : {3, 4, 4}) given.push_back(at::linspace(0, 1, rows * k).reshape({rows, k}).cuda());
        const at::Tensor y = model.run(given)[0].detach().cpu().flatten();
        for (int64_t i = 0; i < y.numel(); ++i) std::printf("%a ", y[i].item<double>());
        std::printf("\\n");
    }
}
"""
BODY = """
add_executable(runs runs.cpp)
target_link_libraries(runs PRIVATE -Wl,--no-as-needed {lib}/libtorch.so {lib}/libtorch_cpu.so {lib}/libtorch_cuda.so
    {lib}/libc10.so {lib}/libc10_cuda.so)
target_include_directories(runs SYSTEM PRIVATE {include} {include}/torch/csrc/api/include)
target_include_directories(runs PRIVATE {own})
target_compile_features(runs PRIVATE cxx_std_20)
set_target_properties(runs PROPERTIES BUILD_RPATH {lib})
"""


@workplace.needs_cmake
def test_a_program_in_cpp_trains_on_a_gpu_as_on_the_cpu(tmp_path: Path) -> None:
    major, minor = torch.cuda.get_device_capability()
    build = workplace.built(workplace.EXAMPLE, tmp_path, "-DWITH_CUDA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={major}{minor}")
    said = [workplace.run(str(build / "train"), *where) for where in ((), ("cuda",))]
    assert [done.returncode for done in said] == [0, 0], said
    on_cpu, on_gpu = (
        [
            [float.fromhex(word) for word in line.split()[1:]]
            for line in done.stdout.splitlines()
            if not line.startswith("refused")
        ]
        for done in said
    )
    assert len(on_cpu) > 5
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-4, atol=1e-5)


@workplace.needs_cmake
def test_a_compiled_archive_runs_in_a_program_in_cpp(archive: Path, tmp_path: Path) -> None:
    if archive.stem != "compiled":
        pytest.skip("C++ runs what is compiled")
    folder = Path(torch.__file__).parent
    body = BODY.format(lib=folder / "lib", include=folder / "include", own=Path(ow.__file__).parent / "include")
    project = workplace.write_project(tmp_path / "project", body, runs=PROGRAM)
    program = workplace.built(project, tmp_path / "build") / "runs"
    done = workplace.run(str(program), str(archive), OPWRIGHT_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = [[float.fromhex(word) for word in line.split()] for line in done.stdout.splitlines()]
    torch.testing.assert_close(found, wanted(), rtol=1e-5, atol=1e-6)
