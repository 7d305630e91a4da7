"""What this machine can build and run, and how to mend what it cannot."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

Verdict = Literal["ok", "missing", "broken"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `missing` limits what can be done, `broken` must be mended."""

    what: str
    verdict: Verdict
    found: str
    mend: str = ""


def examine() -> list[Finding]:
    """Look at everything.

    >>> [f.what for f in examine()][:2]
    ['Python', 'PyTorch']
    """
    return [look() for look in _LOOKS]


def _python() -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()}, {sys.executable}")


def _torch() -> Finding:
    found = f"{torch.__version__}, " + (f"CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA")
    if _version(torch.__version__) < (2, 10):
        return Finding("PyTorch", "broken", found, "opwright needs torch 2.10 or newer: pip install -U torch")
    return Finding("PyTorch", "ok", found)


def _compiler() -> Finding:
    command = os.environ.get("CXX") or next((c for c in ("g++", "clang++", "c++") if shutil.which(c)), None)
    if command is None:
        return Finding(
            "C++ compiler",
            "missing",
            "none found",
            "operators run from their references; to build kernels install g++ 11 or newer "
            "(Debian, Ubuntu: apt install g++) or clang 15, or name one in CXX",
        )
    said = _says([*command.split(), "--version"])
    if said is None:
        return Finding("C++ compiler", "broken", f"{command} does not run", "set CXX to a compiler that does")
    least = 15 if "clang" in said else 11
    if (_version(said) or (least,)) < (least,):
        return Finding("C++ compiler", "broken", said, f"version {least} or newer is needed")
    return Finding("C++ compiler", "ok", said)


def _nvcc() -> Finding:
    from torch.utils import cpp_extension

    home = cpp_extension.CUDA_HOME
    command = shutil.which("nvcc") or (f"{home}/bin/nvcc" if home else None)
    said = _says([command, "--version"]) if command else None
    if said is None:
        return Finding(
            "nvcc",
            "missing",
            "none found",
            "CUDA kernels cannot be built here; install the CUDA toolkit 12.8 or newer, or set CUDA_HOME",
        )
    release = re.search(r"release (\d+\.\d+)", said)
    found = f"CUDA {release[1]}, {command}" if release else said
    ours = torch.version.cuda
    if release and ours and release[1].partition(".")[0] != ours.partition(".")[0]:
        return Finding(
            "nvcc",
            "broken",
            f"{found}; torch was built with CUDA {ours}",
            f"install the CUDA {ours.partition('.')[0]} toolkit, or a torch built with CUDA {release[1]}",
        )
    return Finding("nvcc", "ok", found)


def _gpu() -> Finding:
    if not torch.cuda.is_available():
        why = "torch is built without CUDA" if torch.version.cuda is None else "torch sees no driver or no GPU"
        return Finding("GPU", "missing", why, "operators run on the CPU")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    weak = [i for i in range(len(names)) if torch.cuda.get_device_capability(i) < (8, 0)]
    if weak:
        return Finding("GPU", "broken", ", ".join(names), "CUDA kernels are built for sm_80 (Ampere) and newer")
    return Finding("GPU", "ok", ", ".join(names))


_LOOKS: tuple[Callable[[], Finding], ...] = (_python, _torch, _compiler, _nvcc, _gpu)


def _says(command: list[str]) -> str | None:
    """What a program says of itself: the line with its version, None when it does not run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return None
    return next((line for line in lines if "release" in line), lines[0])


def _version(text: str) -> tuple[int, ...]:
    """The last dotted number in a text: compilers name their distribution's package before their own version."""
    numbers = re.findall(r"\d+(?:\.\d+)+", text)
    return tuple(int(n) for n in numbers[-1].split(".")[:2]) if numbers else ()
