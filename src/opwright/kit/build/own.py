"""The package's own C++: what building its parts takes, and whether they are wanted."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch

from opwright.kit.build import cache, shipped, toolchain
from opwright.kit.build.plan import Plan
from opwright.kit.build.trouble import Unavailable
from opwright.kit.spec.options import Options
from opwright.version import untried

NATIVE: Path = Path(__file__).parent.parent.parent / "native"


def native() -> Plan:
    """The router and the node."""
    # Programs in C++ need it by its name, and find the copy that a process has.
    soname = "libopwright_native.so" if sys.platform == "linux" else ""
    return Plan("native", tuple(sorted(NATIVE.glob("*.cpp"))), Options(abi="aten"), soname=soname)


def call() -> Plan | None:
    """The short way from Python; None where Python's headers are missing, or Python is free-threaded."""
    try:
        toolchain.python_includes()
    except Unavailable:
        return None
    return None if free_threaded() else Plan("call", (NATIVE / "python" / "call.cpp",), Options(abi="aten"))


def guard(device: str = "cpu") -> Plan:
    """The allocator that the check guards memory with, on a CPU or a GPU."""
    if device == "cuda":
        return Plan("check_cuda", (NATIVE / "guard" / "cuda.cpp",), device="cuda")
    return Plan("check", (NATIVE / "guard" / "cpu.cpp",), Options(abi="aten"))


def coverage() -> Plan:
    """What is linked into kernels that tell which of their lines ran."""
    return Plan("coverage", (NATIVE / "coverage" / "coverage.cpp",))


def parts() -> dict[str, Plan]:
    """Those of them that are used without being asked for, by the names that they are shipped under."""
    found = {"native": native(), "call": call(), "check": guard()}
    return {name: plan for name, plan in found.items() if plan is not None}


def built(part: str, plan: Callable[[], Plan | None]) -> cache.Entry | None:
    """A part as it came with the package for this torch and Python, else as it was built here; None: neither."""
    unfit: Unavailable | None = None
    try:
        entry = shipped.own_part(part, content())
        if entry is not None:
            return entry
    except shipped.Unfit as e:
        unfit = e
    try:
        wanted = plan()
        found = None if wanted is None else cache.look_up(cache.open_folder(), wanted.key)
        if found is None and unfit is not None:
            raise unfit
        return found
    except Unavailable as e:
        if unfit is not None:
            raise unfit from None
        known = ", ".join(shipped.own_torches())
        if not known:
            raise
        raise Unavailable(f"this opwright was shipped with it for torch {known} alone, and {e}") from None


@lru_cache
def content() -> str:
    """The hash of all of it, by which what was shipped is told from what was built of other sources."""
    files = sorted(file for file in NATIVE.rglob("*") if file.suffix in (".cpp", ".h"))
    files += [toolchain.INCLUDE / "opwright" / name for name in ("offer.h", "operators.h")]  # that they include
    names = [f"{file.parent.name}/{file.name} {shipped.digest_of(file)}" for file in files]
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def keys() -> set[str]:
    """The keys of all of them, as this version has them."""
    return {plan.key for plan in parts().values()}


def free_threaded() -> bool:
    """Whether this Python is built to run without the global lock. The short way needs that lock: it borrows references
    from lists and dictionaries, which another thread could then empty."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def too_new() -> str | None:
    """Why they are not used with this torch, which is newer than any that was tried; None when they may be."""
    return None if os.environ.get("OPWRIGHT_NATIVE", "") == "1" else untried(torch.__version__)


def missed() -> bool:
    """Whether the router and the node would be used if they were built."""
    if os.environ.get("OPWRIGHT_NATIVE", "") == "0" or too_new() is not None:
        return False
    try:
        return built("native", native) is None
    except Unavailable:
        return False
