"""Whether a built library runs elsewhere: on which systems, from which torch on, and what stands in the way.

A library that calls PyTorch's stable C functions alone, and the system's C and C++ libraries, runs under every later
torch and every Python. One C++ name of PyTorch among its symbols, and it runs under the torch that it was built with.
The library itself says which it is, whatever the sources meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from opwright.kit.build import fatbin
from opwright.kit.ship import platforms, stable
from opwright.kit.ship.elf import Elf, read
from opwright.kit.ship.names import readable
from opwright.version import OLDEST_TORCH

NEWEST_GLIBC = (2, 34)
"""The newest glibc that a library may ask for: that of the oldest systems still in wide use, RHEL 9 among them."""

SYSTEM = {
    "libc.so.6", "libm.so.6", "libmvec.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1",
    "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libstdc++.so.6", "libgcc_s.so.1",
}  # fmt: skip
"""What every Linux system has. Not libgomp: PyTorch brings its own copy, and two in one process fight for cores."""
TORCH = {"libtorch_cpu.so", "libtorch.so", "libtorch_cuda.so", "libc10.so"}
TORCH_ALONE = {"libtorch_python.so", "libc10_cuda.so"}
"""Those that have nothing to call but C++."""

_PYTHON = re.compile(r"_?Py[A-Z_]\w*")
_CPP_OF_TORCH = re.compile(r"_Z.*(?<![0-9])(2at|3c10|5torch|6caffe2)")
_C_OF_TORCH = re.compile(r"aoti_\w+|torch_\w+")
_STD = re.compile(r"_Z(N[KVRO]*|T[VTISHW]N?|GV)?S[tabsiod]")

Abi = Literal["stable", "aten"]


@dataclass(frozen=True)
class Audit:
    """What a library needs, and what is wrong with it."""

    file: Path
    platform: str
    """The platform tag of a wheel that holds it."""
    because: tuple[str, ...]
    """What keeps it from an older platform."""
    torch: stable.Release
    """The oldest torch that has every stable function that it calls."""
    torch_because: tuple[str, ...]
    """The functions that older ones lack; none where it would run with the oldest in the table."""
    tied: tuple[str, ...]
    """What it belongs to and runs with alone, in words; nothing for a library of the stable ABI without a problem."""
    needs_cuda: tuple[str, ...]
    """The functions of libtorch_cuda that it is linked with: it does not load under a CPU-only torch."""
    gpus: tuple[str, ...]
    """The GPUs that it has code for."""
    problems: tuple[str, ...]
    """Sentences, each with the library, what is wrong and what to do."""


def audit(file: Path, *, abi: Abi = "stable", floor: stable.Release = OLDEST_TORCH) -> Audit:
    """Read a library and judge it: by the promises of the stable ABI, or as one that is tied to a torch.

    `floor` is the oldest torch that it is declared to run with.
    """
    library = read(file)
    platform = platforms.platform_of(library)
    known = {each.name: stable.symbols()[each.name] for each in library.undefined if each.name in stable.symbols()}
    since = max((symbol.since for symbol in known.values()), default=min(floor, _oldest()))
    newest = tuple(name for name, symbol in known.items() if symbol.since == since > min(floor, _oldest()))
    foreign = _Foreign.of(library)
    problems = [*_of_platform(platform), *_of_needs(library, abi)]
    if abi == "stable":
        problems += [*_of_symbols(foreign), *_of_torch(library, known, since, newest, floor)]
    return Audit(
        file=file,
        platform=platform.tag,
        because=platform.because,
        torch=since,
        torch_because=newest,
        tied=tuple(_tied(foreign)),
        needs_cuda=tuple(name for name, symbol in known.items() if symbol.library == "libtorch_cuda"),
        gpus=fatbin.code_in(file),
        problems=tuple(f"{file}: {problem}" for problem in problems),
    )


def _oldest() -> stable.Release:
    return stable.release_of(stable.looked_at()[0])


@dataclass(frozen=True)
class _Foreign:
    """The symbols that neither the system nor the stable ABI brings, by whose they are."""

    python: list[str]
    cpp: list[str]
    c: list[str]
    std: list[str]
    others: list[str]

    @classmethod
    def of(cls, library: Elf) -> _Foreign:
        found = cls([], [], [], [], [])
        for name, version, _ in library.undefined:
            # The system's libraries give each symbol a version; PyTorch and Python give none.
            if version is not None or name in stable.symbols():
                continue
            if _PYTHON.fullmatch(name):
                found.python.append(name)
            elif _CPP_OF_TORCH.match(name):
                found.cpp.append(name)
            elif _C_OF_TORCH.fullmatch(name):
                found.c.append(name)
            elif name in library.weak:
                pass  # it may be missing: what compilers ask for, just in case
            elif _STD.match(name):
                found.std.append(name)
            else:
                found.others.append(name)
        return found


def _some(names: Iterable[str]) -> str:
    """The first few, and how many more there are."""
    listed = [readable(name) for name in names]
    shown = ", ".join(listed[:3])
    return shown if len(listed) <= 3 else f"{shown} and {len(listed) - 3} more"


def _tied(foreign: _Foreign) -> Iterator[str]:
    if foreign.cpp:
        yield f"the torch it was built with, by {_some(foreign.cpp)}"
    if foreign.python:
        yield f"the Python it was built with, by {_some(foreign.python)}"


def _of_platform(platform: platforms.Platform) -> Iterator[str]:
    newest = ".".join(map(str, NEWEST_GLIBC))
    remedy = f"build it on a system with glibc {newest} and its compiler, or leave out what asks for it"
    if platform.glibc is None and platform.because:
        yield f"no manylinux platform has {_some(platform.because)}; {remedy}"
    elif platform.glibc is not None and platform.glibc > NEWEST_GLIBC:
        yield f"it needs {platform.tag}, newer than glibc {newest}, for {_some(platform.because)}; {remedy}"


def _of_needs(library: Elf, abi: Abi) -> Iterator[str]:
    for name in library.needed:
        if name in SYSTEM or name in TORCH or (abi == "aten" and name in TORCH_ALONE):
            continue
        if name.startswith("libgomp"):
            remedy = "leave out -fopenmp and share the work by kernel.h's parallel(…), on PyTorch's threads"
        elif name.startswith("libcudart"):
            remedy = "leave out -lcudart: the build links CUDA's runtime statically"
        elif name in TORCH_ALONE or name.startswith("libpython"):
            remedy = "call PyTorch's stable functions alone, or declare Options(abi='aten')"
        else:
            remedy = "link it statically, or take it out of ldflags"
        yield f"it needs {name}, which other machines may lack; {remedy}"
    if library.rpath:
        yield (
            f"it has the search path {':'.join(library.rpath)}, which another machine may lack or somebody else may "
            f"write to; take -rpath out of ldflags, and unset LD_RUN_PATH"
        )


def _of_symbols(foreign: _Foreign) -> Iterator[str]:
    other = "or declare Options(abi='aten'), which builds it for the torch at hand"
    if foreign.cpp:
        yield (
            f"it calls C++ of PyTorch, which changes with every release: {_some(foreign.cpp)}; include "
            f"opwright/kernel.h or torch/csrc/stable in place of ATen, c10 and torch/all.h, {other}"
        )
    if foreign.python:
        yield f"it calls Python, so it runs with one version of it: {_some(foreign.python)}; take Python.h out, {other}"
    if foreign.c:
        releases = ", ".join(stable.looked_at())
        yield (
            f"it calls functions that no torch of {releases} has in its stable ABI: {_some(foreign.c)}; use others, "
            f"{other}"
        )
    if foreign.std:
        yield (
            f"it takes C++ functions from a library that gives them no version, as PyTorch's give away parts of "
            f"libstdc++ that they carry: {_some(foreign.std)}; link libstdc++ before that library, by -lstdc++"
        )
    if foreign.others:
        yield (
            f"nothing that it may need has {_some(foreign.others)}; add the source that defines them to "
            f"Options(sources=…), or link their library statically"
        )


def _of_torch(
    library: Elf, known: dict[str, stable.Symbol], since: stable.Release, newest: tuple[str, ...], floor: stable.Release
) -> Iterator[str]:
    if since > floor:
        yield (
            f"it is declared for torch {_dotted(floor)} and needs {_dotted(since)}, which first had {_some(newest)}; "
            f"declare torch>={_dotted(since)}, or set TORCH_TARGET_VERSION to {_dotted(floor)} "
            f"(0x{floor[0]:02x}{floor[1]:02x}000000000000) and use what it has"
        )
    gone = {name: symbol.gone for name, symbol in known.items() if symbol.gone is not None}
    if gone:
        first = min(gone.values())
        yield f"torch {_dotted(first)} no longer has {_some(gone)}; use what replaced them"
    of_cuda = [name for name, symbol in known.items() if symbol.library == "libtorch_cuda"]
    if of_cuda and not {"libtorch.so", "libtorch_cuda.so"} & {*library.needed}:
        yield (
            f"it calls {_some(of_cuda)} of libtorch_cuda and does not say that it needs that; link libtorch, which "
            f"brings it where torch has CUDA"
        )


def _dotted(release: stable.Release) -> str:
    return f"{release[0]}.{release[1]}"
