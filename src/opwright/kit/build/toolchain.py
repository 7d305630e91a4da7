"""The compiler and the PyTorch it compiles against."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from opwright.kit.build.trouble import Unavailable

INCLUDE = Path(__file__).parent.parent.parent / "include"
"""The headers that kernels include, in the package itself."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: how to call it, and what tells it from any other."""

    command: tuple[str, ...]
    identity: str

    @property
    def is_gcc(self) -> bool:
        """As its name tells; what macOS calls g++ is clang."""
        names = (os.path.realpath(self.command[0]), *self.command)
        return sys.platform != "darwin" and not any("clang" in os.path.basename(name) for name in names)


def compiler() -> Compiler:
    """The compiler named by CXX, else the first of g++, clang++ and c++ that is there."""
    return _identify(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@lru_cache
def _identify(wanted: str, path: str) -> Compiler:
    for command in [shlex.split(wanted)] if wanted else [["g++"], ["clang++"], ["c++"]]:
        found = shutil.which(command[0], path=path)
        if found is not None:
            # Asking for its version would start a process in every program that only loads from the cache.
            real = Path(found).resolve()
            about = real.stat()
            return Compiler((found, *command[1:]), f"{real} {about.st_size} {about.st_mtime_ns} {command[1:]}")
    if wanted:
        raise Unavailable(
            f"there is no compiler {wanted!r}, which CXX names; set CXX to one that is there, or unset it"
        )
    raise Unavailable("there is no C++ compiler; install g++ 11 or newer (Debian, Ubuntu: apt install g++), or set CXX")


def torch_identity() -> str:
    """What a library compiled against this PyTorch depends on."""
    return f"{torch.__version__} {torch.version.git_version} {platform.machine()} {platform.libc_ver()}"


def torch_source() -> str:
    """What PyTorch's C++ depends on: its version, without what tells builds of one source apart, and the commit."""
    return f"{torch.__version__.partition('+')[0]} {torch.version.git_version}"


def torch_includes() -> list[Path]:
    root = Path(torch.__file__).parent / "include"
    return [root, root / "torch" / "csrc" / "api" / "include"]


def python_includes() -> Path:
    """The folder of Python.h."""
    folder = Path(sysconfig.get_paths()["include"])
    if not (folder / "Python.h").is_file():
        raise Unavailable(
            f"there is no Python.h in {folder}; install Python's headers (Debian, Ubuntu: apt install python3-dev), "
            f"or include ATen/ATen.h in place of torch/extension.h"
        )
    return folder


def torch_libraries() -> Path:
    return Path(torch.__file__).parent / "lib"


def jobs() -> int:
    """How many compilers to run at once: bounded by cores, and by memory at 2 GiB each."""
    asked = os.environ.get("OPWRIGHT_JOBS", "")
    if asked:
        if not asked.isdigit() or int(asked) < 1:
            raise ValueError(f"OPWRIGHT_JOBS must be a positive number, got {asked!r}")
        return int(asked)
    return max(1, min(cores(), free_memory() // (2 << 30)))


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int:
    """The bytes of memory that programs may still take."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return 4 << 30
