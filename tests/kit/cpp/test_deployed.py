"""Models that leave: exported and compiled ones with their operators in the archive, TorchScript, other processes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.deploy import loader
from opwright.kit.dispatch import native
from tests.kit.cpp import workplace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.available() is not None, reason="opwright's own C++ is not built"),
]

OPERATOR = """
import torch
import opwright as ow

@ow.op(namespace="deployed_ops")
def bent(x: torch.Tensor, *, by: float = 2.0) -> torch.Tensor:
    "x + by·x²."
    return x + by * x * x

bent.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,)))
"""
KERNEL = """
#include <opwright/kernel.h>

Tensor bent_cpu(const Tensor& x, double by) {
    return compute(x, [&](auto zero) {
        using C = decltype(zero);
        return map([by = C(by)](C v) { return v + by * v * v; }, x);
    });
}
OPWRIGHT_KERNEL(bent, CPU, bent_cpu);
"""


@pytest.fixture(scope="module")
def bent(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("deployed") / "bent"
    folder.mkdir()
    (folder / "op.py").write_text(OPERATOR)
    (folder / "cpu.cpp").write_text(KERNEL)
    return ow.load(folder).bent


class Model(torch.nn.Module):
    def __init__(self, bent: Callable[..., Tensor]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(12.0).reshape(4, 3) / 10)
        self.bent = bent

    def forward(self, x: Tensor) -> Tensor:
        return self.bent(torch.nn.functional.linear(x, self.weight), by=0.5) * 2


def exported(bent: Any) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=2, max=64)
    return torch.export.export(Model(bent), (torch.ones(3, 3),), dynamic_shapes=({0: rows},))


@pytest.fixture(scope="module", params=["exported", "compiled"])
def archive(request: pytest.FixtureRequest, bent: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("archive") / "model.pt2"
    assert ow.package(exported(bent), file, compiled=request.param == "compiled") == file
    return file


LOADS = """
import importlib.util, json, sys
import torch
spec = importlib.util.spec_from_file_location("loader", sys.argv[1])
loader = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loader)
how = json.loads(sys.argv[3])
try:
    model = loader.load_package(sys.argv[2], **how)
except loader.NotLoaded as e:
    print("NOT LOADED", e)
    sys.exit()
model = model.module() if hasattr(model, "module") else model
assert "opwright" not in sys.modules
for rows in (2, 5):
    print(json.dumps(model(torch.linspace(-1, 1, rows * 3).reshape(rows, 3)).tolist()))
try:
    torch.ops.deployed_ops.bent(torch.ones(2, dtype=torch.int64))
except NotImplementedError as e:
    print(e)
"""


def load_elsewhere(archive: Path, tmp_path: Path, **how: Any) -> str:
    """What a process without opwright says when it loads an archive."""
    alone = shutil.copy(loader.__file__, tmp_path / "load_model.py")
    settings = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    settings |= {"OPWRIGHT_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LOADS, str(alone), str(archive), json.dumps(how)]
    done = subprocess.run(command, env=settings, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_archive_runs_in_a_process_without_opwright(archive: Path, bent: Any, tmp_path: Path) -> None:
    *results, refused = load_elsewhere(archive, tmp_path, trust=True).splitlines()
    assert refused.startswith("deployed_ops::bent: x is Long[2] on cpu; its kernel for CPU takes tensors of float32")
    for rows, said in zip((2, 5), results, strict=True):
        wanted = Model(bent)(torch.linspace(-1, 1, rows * 3).reshape(rows, 3))
        torch.testing.assert_close(torch.tensor(json.loads(said)), wanted.detach())


def test_code_is_loaded_on_the_callers_word_alone(archive: Path, tmp_path: Path) -> None:
    said = load_elsewhere(archive, tmp_path)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert said.startswith("NOT LOADED")
    assert "which is code; pass trust=True" in said
    assert "sha256 must be the 64 hexadecimal digits" in load_elsewhere(archive, tmp_path, trust=True, sha256="")
    assert "expected; fetch it again" in load_elsewhere(archive, tmp_path, trust=True, sha256="0" * 64)
    assert "NOT LOADED" not in load_elsewhere(archive, tmp_path, trust=True, sha256=f"sha256:{digest}")


def test_a_compiled_model_is_code_by_itself(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(3, 3), (torch.ones(2, 3),))
    file = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "plain.pt2"))
    assert "it holds a compiled model, which is code" in load_elsewhere(Path(file), tmp_path)


def test_a_cache_folder_is_made_for_its_user_alone(archive: Path, tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        assert "NOT LOADED" not in load_elsewhere(archive, tmp_path, trust=True)
    finally:
        os.umask(before)
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0


def test_what_is_changed_in_nothing_loads(archive: Path, tmp_path: Path) -> None:
    same = changed(archive, tmp_path / "same.pt2", "nothing", lambda old: old)
    assert "NOT LOADED" not in load_elsewhere(same, tmp_path, trust=True)


def changed(archive: Path, to: Path, name: str, change: Callable[[bytes], bytes]) -> Path:
    """An archive with one member changed."""
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(to, "w") as new:
        for item in old.infolist():
            content = old.read(item)
            new.writestr(item.filename, change(content) if name in item.filename else content)
    return to


CHANGES: dict[str, tuple[str, Callable[[bytes], bytes], str, str]] = {
    "another library": (
        ".so",
        lambda old: old[:-1] + bytes([old[-1] ^ 1]),
        "is not what the archive's list says",
        "is not what the archive's list says",
    ),
    "another model": (
        ".json",
        lambda old: old + b"\n",
        ".json is not what the archive's list says",
        ".json is not what the archive's list says",
    ),
    "another schema": (
        "opwright/manifest",
        lambda old: old.replace(b"Tensor x, *, float by", b"Tensor x, *, int by"),
        "the model calls deployed_ops::bent(Tensor x, *, int by",
        "the model calls deployed_ops::bent(Tensor x, *, int by",
    ),
    "another format": (
        "opwright/manifest",
        lambda old: old.replace(b"format\t1", b"format\t9"),
        "of format 9",
        "of another format",
    ),
    "another torch": (
        "opwright/manifest",
        lambda old: old.replace(torch.__version__.partition("+")[0].encode(), b"2.9.9"),
        "it was written for torch 2.9.9",
        "it was written for another torch",
    ),
    "a strange row": (
        "opwright/manifest",
        lambda old: old + b"strange\n",
        "its manifest was changed ('strange')",
        "its manifest was changed ('strange')",
    ),
    "what is said cut short": (
        "opwright/operators",
        lambda old: old[: -len(old) // 4],
        "what it says of its operators is cut short",
        "what it says of its operators is cut short",
    ),
}
"""What is changed, and what Python and C++ say of it."""


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_archive_is_refused_before_anything_runs(archive: Path, tmp_path: Path, what: str) -> None:
    name, change, said, _ = CHANGES[what]
    assert said in load_elsewhere(changed(archive, tmp_path / "changed.pt2", name, change), tmp_path, trust=True)


def test_an_archive_that_was_cut_is_refused(archive: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pt2"
    cut.write_bytes(archive.read_bytes()[:-2000])
    assert "cut short or changed" in load_elsewhere(cut, tmp_path, trust=True)


def test_a_cache_that_others_can_write_is_refused(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "cache" / "packages").mkdir(parents=True)
    (tmp_path / "cache" / "packages").chmod(0o777)
    assert "others can write to it" in load_elsewhere(archive, tmp_path, trust=True)


def test_here_the_operators_of_an_archive_are_those_that_are_there(archive: Path, bent: Any) -> None:
    model = ow.load_package(archive, trust=True)
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    found = (model.module() if hasattr(model, "module") else model)(x)
    torch.testing.assert_close(found, Model(bent)(x), check_device=False)
    assert bent(torch.ones(2, dtype=torch.int64)).tolist() == [3.0, 3.0]  # the reference is still there


def test_an_archive_of_somebody_elses_making(bent: Any, tmp_path: Path) -> None:
    plain = tmp_path / "plain.pt2"
    torch.export.save(exported(bent), plain)
    assert "NOT LOADED" not in load_elsewhere(ow.package(plain, tmp_path / "with.pt2"), tmp_path, trust=True)


def test_a_model_whose_operator_nobody_imported_is_refused(bent: Any, tmp_path: Path) -> None:
    torch.export.save(exported(bent), tmp_path / "plain.pt2")
    program = f"import opwright as ow; ow.package({str(tmp_path / 'plain.pt2')!r}, {str(tmp_path / 'with.pt2')!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert "the model calls deployed_ops::bent, which is not in this process; import what defines it" in done.stderr


def test_a_model_whose_operator_has_no_kernel_is_refused(tmp_path: Path) -> None:
    @ow.op(namespace="deployed_ops", opaque=True)
    def kernelless(x: Tensor) -> Tensor:
        return x + 1

    class Plain(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return kernelless(x)

    program = torch.export.export(Plain(), (torch.ones(2),))
    with pytest.raises(ValueError, match="kernelless: no kernel for cpu, and the model would have nothing to call"):
        ow.package(program, tmp_path / "model.pt2", devices=["cpu"])
    assert not (tmp_path / "model.pt2").exists()


PROGRAM = """
#include <opwright/package.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/script.h>

#include <cstdio>
#include <iostream>

// runs MODEL [SHA256]: a compiled archive, or TorchScript.
int main(int, char** argv) {
    const std::string file = argv[1];
    try {
        for (const int64_t rows : {2, 5}) {
            const at::Tensor x = at::linspace(-1, 1, rows * 3).reshape({rows, 3});
            at::Tensor y;
            if (file.substr(file.size() - 4) == ".pt2") {
                opwright::load_operators(file, argv[2] == nullptr ? opwright::Trusted() : opwright::Trusted(argv[2]));
                y = torch::inductor::AOTIModelPackageLoader(file).run({x})[0];
            } else {
                y = torch::jit::load(file).forward({x}).toTensor();
            }
            y = y.detach().flatten();
            for (int64_t i = 0; i < y.numel(); ++i) std::printf("%a ", y[i].item<double>());
            std::printf("\\n");
        }
    } catch (const c10::Error& e) {
        std::printf("refused: %s\\n", e.what_without_backtrace());
    } catch (const std::exception& e) {  // TorchScript's own
        std::printf("refused: %s\\n", e.what());
    }
}
"""
BODY = """
add_executable(runs_archives runs.cpp)
target_link_libraries(runs_archives PRIVATE {torch}/libtorch_cpu.so {torch}/libc10.so)
target_include_directories(runs_archives SYSTEM PRIVATE {include} {include}/torch/csrc/api/include)
target_include_directories(runs_archives PRIVATE {own})
target_compile_features(runs_archives PRIVATE cxx_std_20)
set_target_properties(runs_archives PROPERTIES BUILD_RPATH {torch})

opwright_add_operators(deployed {folder})
add_executable(runs_scripts runs.cpp)
target_link_options(runs_scripts PRIVATE LINKER:--as-needed)
target_link_libraries(runs_scripts PRIVATE deployed)
"""


@pytest.fixture(scope="module")
def programs(bent: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("programs")
    torch_folder, own = Path(torch.__file__).parent, Path(ow.__file__).parent / "include"
    names = {"torch": torch_folder / "lib", "include": torch_folder / "include", "own": own}
    body = BODY.format(**names, folder=Path(bent.file).parent)
    return workplace.built(workplace.write_project(place / "project", body, runs=PROGRAM), place / "build")


def read(said: str) -> list[Tensor]:
    return [
        torch.tensor([float.fromhex(word) for word in line.split()], dtype=torch.float32) for line in said.splitlines()
    ]


def wanted(bent: Any) -> list[Tensor]:
    return [Model(bent)(torch.linspace(-1, 1, n * 3).reshape(n, 3)).detach().flatten() for n in (2, 5)]


@workplace.needs_cmake
def test_an_archive_runs_in_a_program_in_cpp(programs: Path, bent: Any, tmp_path: Path) -> None:
    file = ow.package(exported(bent), tmp_path / "model.pt2", compiled=True)
    program, cache = str(programs / "runs_archives"), str(tmp_path / "cache")
    done = workplace.run(program, str(file), OPWRIGHT_CACHE_DIR=cache)
    assert done.returncode == 0, done.stdout + done.stderr
    torch.testing.assert_close(read(done.stdout), wanted(bent))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert workplace.run(program, str(file), digest, OPWRIGHT_CACHE_DIR=cache).stdout == done.stdout
    other = workplace.run(program, str(file), "0" * 64, OPWRIGHT_CACHE_DIR=cache).stdout
    assert other.startswith(f"refused: {file}: its SHA-256 is {digest}")
    assert "64 hexadecimal digits" in workplace.run(program, str(file), "", OPWRIGHT_CACHE_DIR=cache).stdout
    same = changed(file, tmp_path / "same.pt2", "nothing", lambda old: old)
    assert workplace.run(program, str(same), OPWRIGHT_CACHE_DIR=cache).stdout == done.stdout
    for name, change, _, said in CHANGES.values():
        broken = changed(file, tmp_path / "changed.pt2", name, change)
        told = workplace.run(program, str(broken), OPWRIGHT_CACHE_DIR=cache).stdout
        assert told.startswith("refused: ")
        assert said in told
    (tmp_path / "cut.pt2").write_bytes(file.read_bytes()[:-2000])
    told = workplace.run(program, str(tmp_path / "cut.pt2"), OPWRIGHT_CACHE_DIR=cache).stdout
    assert told.startswith(f"refused: {tmp_path / 'cut.pt2'}: it is cut short or changed")


@workplace.needs_cmake
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", ["script", "trace"])
def test_torchscript_runs_in_python_and_in_cpp(programs: Path, bent: Any, tmp_path: Path, way: str) -> None:
    class Scripted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(12.0).reshape(4, 3) / 10)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = torch.ops.deployed_ops.bent(torch.nn.functional.linear(x, self.weight), by=0.5)
            return y * 2

    model = torch.jit.script(Scripted()) if way == "script" else torch.jit.trace(Scripted(), torch.ones(2, 3))
    file = tmp_path / "model.pt"
    model.save(file)
    for rows, each in zip((2, 5), wanted(bent), strict=True):
        found = torch.jit.load(file)(torch.linspace(-1, 1, rows * 3).reshape(rows, 3))
        torch.testing.assert_close(found.flatten().detach(), each)
    done = workplace.run(str(programs / "runs_scripts"), str(file))
    torch.testing.assert_close(read(done.stdout), wanted(bent))
    missing = workplace.run(str(programs / "runs_archives"), str(file)).stdout
    assert "deployed_ops::bent" in missing
