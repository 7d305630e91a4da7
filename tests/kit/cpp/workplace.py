"""Builds with CMake, as a user of `find_package(opwright)` does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opwright.kit.cpp.project import CMAKE

EXAMPLE = Path(__file__).parents[3] / "examples" / "cpp"

needs_cmake = pytest.mark.skipif(
    shutil.which("cmake") is None or sys.platform != "linux", reason="needs CMake, and a linker as Linux has it"
)

PROJECT = """
cmake_minimum_required(VERSION 3.18)
project(tried LANGUAGES CXX)
find_package(opwright REQUIRED)
{body}
"""
KERNEL = """
#include <opwright/kernel.h>

Tensor halved_cpu(const Tensor& x{more}) {{
    return compute(x, [&](auto zero) {{
        using C = decltype(zero);
        return map([](C v) {{ return v * C({factor}); }}, x);
    }});
}}
OPWRIGHT_KERNEL(halved, CPU, halved_cpu);
"""
OPERATOR = """
import torch
import opwright as ow

@ow.op(namespace="{namespace}")
def halved(x: torch.Tensor{more}) -> torch.Tensor:
    "Half of x."
    return x * 0.5

halved.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,), ranks={{"x": range(0, 3)}}))
"""


def write_operator(folder: Path, namespace: str, factor: str = "0.5", more: str = "", more_cpp: str = "") -> Path:
    """An operator whose kernel can be told from its reference by another factor."""
    folder.mkdir(parents=True)
    (folder / "op.py").write_text(OPERATOR.format(namespace=namespace, more=more))
    (folder / "cpu.cpp").write_text(KERNEL.format(factor=factor, more=more_cpp))
    return folder


def write_project(folder: Path, body: str, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "CMakeLists.txt").write_text(PROJECT.format(body=body))
    for name, text in files.items():
        (folder / f"{name}.cpp").write_text(text)
    return folder


def configure(source: Path, build: Path, *options: str, generator: str = "Ninja") -> subprocess.CompletedProcess[str]:
    chosen = generator if generator != "Ninja" or shutil.which("ninja") else "Unix Makefiles"
    here = [f"-Dopwright_DIR={CMAKE}", f"-DOPWRIGHT_PYTHON={sys.executable}"]
    return run("cmake", "-G", chosen, "-S", str(source), "-B", str(build), *here, *options)


def make(build: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run("cmake", "--build", str(build), *options)


def run(*command: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command on one thread, with what it said."""
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, cwd=cwd, env=settings, capture_output=True, text=True, timeout=580)


def built(source: Path, build: Path, *options: str, generator: str = "Ninja") -> Path:
    """A project, configured and built; the folder with what was built."""
    for done in (configure(source, build, *options, generator=generator), make(build)):
        assert done.returncode == 0, done.stdout + done.stderr
    return build
