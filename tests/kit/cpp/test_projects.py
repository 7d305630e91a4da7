"""CMake projects: built again when something changes, installed, exported, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.cpp import workplace

pytestmark = [workplace.needs_cmake, pytest.mark.slow]

PROGRAM = """
#include <ATen/ATen.h>
#include <tried_ops/operators.h>
#include <cstdio>

int main() {
    try {
        std::printf("%.3f\\n", NAMESPACE::halved(at::ones({1})).item<double>());
        NAMESPACE::halved(at::ones({1, 1, 1}));
    } catch (const c10::Error& e) {
        std::printf("%s\\n", e.what_without_backtrace());
    }
}
"""
BODY = """
opwright_add_operators(tried_ops ops/halved)
add_executable(tried tried.cpp)
target_link_libraries(tried PRIVATE tried_ops)
install(TARGETS tried)
"""


@pytest.mark.parametrize("generator", ["Ninja", "Unix Makefiles"])
def test_what_changes_is_built_again_and_nothing_else(tmp_path: Path, generator: str) -> None:
    space = f"cmake_{generator.split()[0].lower()}"
    project = workplace.write_project(tmp_path / "a project", BODY, tried=PROGRAM.replace("NAMESPACE", space))
    folder = workplace.write_operator(project / "ops" / "halved", space, factor="0.25")
    build = workplace.built(project, tmp_path / "build", generator=generator)
    first = workplace.run(str(build / "tried"))
    assert first.stdout.splitlines() == [
        "0.250",
        f"{space}::halved: x is Float[1, 1, 1] on cpu; its kernel for CPU takes tensors of float32, x of 0 to 2 "
        "dimensions. All else its reference takes, which is in Python",
    ]
    again = workplace.make(build)
    assert "Building" not in again.stdout, again.stdout
    kernel = folder / "cpu.cpp"
    kernel.write_text(kernel.read_text().replace("0.25", "0.75"))
    assert workplace.make(build).stdout.count("Building") == 1
    assert workplace.run(str(build / "tried")).stdout.startswith("0.750\n")
    operator = folder / "op.py"
    operator.write_text(operator.read_text().replace("range(0, 3)", "range(0, 4)"))
    made = workplace.make(build)
    assert made.returncode == 0, made.stdout + made.stderr
    assert workplace.run(str(build / "tried")).stdout == "0.750\n"


def test_a_library_is_installed_and_found_by_another_project(tmp_path: Path) -> None:
    project = workplace.write_project(tmp_path / "first", BODY, tried=PROGRAM.replace("NAMESPACE", "cmake_installed"))
    workplace.write_operator(project / "ops" / "halved", "cmake_installed")
    build = workplace.built(project, tmp_path / "build")
    prefix = tmp_path / "prefix"
    done = workplace.run("cmake", "--install", str(build), "--prefix", str(prefix))
    assert done.returncode == 0, done.stderr
    body = "find_package(Torch REQUIRED)\nfind_package(tried_ops REQUIRED)\nadd_executable(second second.cpp)\n"
    body += "target_link_libraries(second PRIVATE tried_ops::tried_ops ${TORCH_LIBRARIES})\n"
    second = tmp_path / "second"
    second.mkdir()
    import torch

    text = f"cmake_minimum_required(VERSION 3.18)\nproject(second LANGUAGES CXX)\n{body}"
    (second / "CMakeLists.txt").write_text(text)
    (second / "second.cpp").write_text(PROGRAM.replace("NAMESPACE", "cmake_installed"))
    found = f"-DCMAKE_PREFIX_PATH={prefix};{torch.utils.cmake_prefix_path}"
    build.rename(tmp_path / "gone")  # what is installed stands by itself
    made = workplace.built(second, tmp_path / "build2", found, "-DCMAKE_CXX_STANDARD=20")
    assert workplace.run(str(made / "second")).stdout.startswith("0.500\n")

    headers = tmp_path / "other" / "include" / "torch" / "headeronly"
    headers.mkdir(parents=True)
    lines = "".join(f"#define TORCH_VERSION_{part} {n}\n" for part, n in (("MAJOR", 1), ("MINOR", 2), ("PATCH", 3)))
    (headers / "version.h").write_text(lines)
    (second / "CMakeLists.txt").write_text(text + f"set(TORCH_INSTALL_PREFIX {tmp_path / 'other'})\n")
    done = workplace.configure(second, tmp_path / "build3", found)
    said = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert "found 1.2.3" in said
    assert f"and tried_ops was built with torch {torch.__version__.partition('+')[0]}, which" in said


REFUSED = {
    "a folder that is not there": ("opwright_add_operators(tried_ops nowhere)", "nowhere"),
    "no operator": ("opwright_add_operators(tried_ops)", "name operators: folders, files, packages"),
    "an operator without kernels": (
        "opwright_add_operators(tried_ops opwright.axpby_)",
        "tried_ops: no operator has a kernel that can be built",
    ),
    "a name that is none of C++": ("opwright_add_operators(tried-ops opwright.cube)", "got 'tried-ops'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_a_library_is_told_when_it_is_configured(tmp_path: Path, what: str) -> None:
    body, said = REFUSED[what]
    done = workplace.configure(workplace.write_project(tmp_path / "project", body), tmp_path / "build")
    assert done.returncode != 0
    assert said in " ".join(done.stderr.split()), done.stderr


def test_a_kernel_of_other_types_fails_the_build(tmp_path: Path) -> None:
    project = workplace.write_project(tmp_path / "project", "opwright_add_operators(tried_ops ops/halved)")
    folder = workplace.write_operator(
        project / "ops" / "halved", "cmake_types", more=", n: int = 1", more_cpp=", double n"
    )
    assert workplace.configure(project, tmp_path / "build").returncode == 0
    done = workplace.make(tmp_path / "build")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert f"{folder}/cpu.cpp:" in said
    assert "halved_cpu takes (Tensor,float) and returns (Tensor); the schema of halved has (Tensor,int)" in said
