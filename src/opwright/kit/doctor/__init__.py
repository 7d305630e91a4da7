"""What this machine can build and run, and how to fix what it cannot."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from opwright.kit.build import cache, own, room
from opwright.kit.build.trouble import Unavailable
from opwright.kit.dispatch import native, short
from opwright.kit.doctor import cuda as doctor_cuda
from opwright.kit.doctor.finding import Finding


def examine() -> list[Finding]:
    """Look at everything.

    >>> [f.what for f in examine()][:2]
    ['Python', 'PyTorch']
    """
    return [*(look() for look in _LOOKS), *doctor_cuda.examine()]


def _python() -> Finding:
    found = f"{platform.python_version()}, {sys.executable}"
    if own.free_threaded():
        fix = "opwright is untried without the global lock; calls go through Python, and are slower than on others"
        return Finding("Python", "missing", f"{found}, free-threaded", fix)
    return Finding("Python", "ok", found)


def _torch() -> Finding:
    found = f"{torch.__version__}, " + (f"CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA")
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


def _cache() -> Finding:
    try:
        root = cache.open_folder()
        cache.refuse_read_only(root)
        room.limit()
    except (Unavailable, ValueError) as e:
        return Finding("cache", "broken", "libraries cannot be kept", str(e))
    found = cache.entries(root)
    return Finding("cache", "ok", f"{root}, {len(found)} libraries, {room.usage(found)}")


def _native() -> Finding:
    what = "opwright's own C++"
    why = native.available()
    if why is not None and why == own.too_new():
        return Finding(what, "missing", why, "pip install -U opwright: a newer one may know this torch")
    if why is not None:
        fix = "kernels are chosen and gradients recorded in Python, tens of µs slower: opwright build"
        return Finding(what, "missing", why, fix)
    found = "kernels are chosen and gradients recorded in C++"
    missing = short.look()
    if missing is None:
        return Finding(what, "ok", f"{found}; calls from Python take the short way")
    fix = "calls from Python are some tenths of a µs slower"
    fix += "" if own.free_threaded() else ": install Python's headers, then opwright build"
    return Finding(what, "missing", f"{found}; no short way for calls: {missing}", fix)


_LOOKS: tuple[Callable[[], Finding], ...] = (_python, _torch, _compiler, _cache, _native)


def examine_library(file: Path) -> list[Finding]:
    """Look at a built library: does it load into this torch, and is it named as Python will ask for it?"""
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    # Loading runs code of the library's, so it happens in a process of its own, where a crash is a finding.
    code = "import sys, torch, ctypes; ctypes.CDLL(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file.absolute())], capture_output=True, text=True, check=False
    )
    said = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
    findings = [Finding("loads", "ok", f"into torch {torch.__version__}")]
    if done.returncode:
        findings = [Finding("loads", "broken", said, _why_it_does_not_load(said, done.returncode))]
    inits = {name.decode() for name in re.findall(rb"PyInit_(\w+)\x00", file.read_bytes())}
    asked = file.name.partition(".")[0]
    if inits and asked not in inits:
        found = f"the file is called {asked}, the module in it {', '.join(sorted(inits))}"
        fix = f"rename the file to {sorted(inits)[0]}.so, or the module to {asked} (TORCH_EXTENSION_NAME does it)"
        findings.append(Finding("module name", "broken", found, fix))
    gpu = doctor_cuda.examine_code(file)
    return findings if gpu is None else [*findings, gpu]


def _why_it_does_not_load(said: str, code: int) -> str:
    if code < 0:
        return "it crashes while loading: its static initialisers run code that fails; build it again with -g and look"
    if "undefined symbol" in said and re.search(r"_ZN?K?\d*(c10|2at|3c10|5torch|at)", said):
        return "it was built for another torch: build it again with this one, or against the stable ABI"
    if "undefined symbol" in said:
        return "a library is missing at its link: add the one that defines the symbol"
    if "cannot open shared object file" in said:
        return "a library that it needs is not found: install it, or set LD_LIBRARY_PATH"
    if "invalid ELF header" in said or "file too short" in said:
        return "it is no whole library of this platform: build it again"
    return "build it again on this machine"


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
