"""Some compilers bring libstdc++ as an archive: what comes out of archives stays inside a library."""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch

import opwright as ow
from opwright.kit.build import toolchain
from opwright.kit.build.library import libraries

OPERATOR = """
import torch
import opwright as ow

@ow.op
def shifted(x: torch.Tensor) -> torch.Tensor:
    "x + 42"
    return x + 42

shifted.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,)), ow.Options(ldflags=({archive!r},)))
"""
KERNEL = """
#include <opwright/kernel.h>

int from_an_archive();

Tensor shifted_cpu(const Tensor& x) {
    return map([by = static_cast<float>(from_an_archive())](float v) { return v + by; }, x);
}
OPWRIGHT_KERNEL(shifted, CPU, shifted_cpu);
"""


def _archive(folder: Path) -> Path:
    source, member, archive = (folder / f"part.{end}" for end in ("cpp", "o", "a"))
    source.write_text("int from_an_archive() { return 42; }")
    command = [*toolchain.compiler().command, "-fPIC", "-c", str(source), "-o", str(member)]
    subprocess.run(command, check=True)
    subprocess.run(["ar", "rc", str(archive), str(member)], check=True)
    return archive


def test_a_library_gives_away_nothing_that_came_out_of_an_archive(tmp_path: Path) -> None:
    archive = _archive(tmp_path)
    folder = tmp_path / "shifted"
    folder.mkdir()
    (folder / "op.py").write_text(OPERATOR.format(archive=str(archive)))
    (folder / "cpu.cpp").write_text(KERNEL)
    assert ow.load(folder).shifted(torch.zeros(2)).tolist() == [42, 42]
    [library] = [each.loaded for each in libraries() if each.file.parent == folder]
    shown = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    assert "opwright" in shown.stdout
    assert "from_an_archive" not in shown.stdout


SAYING = """
#include <pybind11/pybind11.h>

#include <sstream>
#include <string>

std::string said(double number) {
    std::ostringstream out;
    out << "got " << number;
    if (!out) throw std::runtime_error("a stream that fails");
    return out.str();
}
int from_an_archive();
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("said", &said);
    m.def("answer", &from_an_archive);
}
"""


def test_an_extension_with_a_libstdcpp_of_its_own_prints_numbers(tmp_path: Path) -> None:
    file = tmp_path / "saying.cpp"
    file.write_text(SAYING)
    flags = ["-static-libstdc++", str(_archive(tmp_path))]
    made = ow.load_extension(file, name="saying", extra_ldflags=flags, build_directory=tmp_path)
    assert made.said(0.25) == "got 0.25"
    assert made.answer() == 42
    command = ["nm", "-D", "--defined-only", str(tmp_path / "saying.so")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "_ZSt4cout" not in shown
    assert "from_an_archive" in shown, "what its author links, it shows, as torch.utils.cpp_extension has it"
