"""What is to be built, and the key that tells it from everything else."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from opwright.kit.build import cuda, depends, toolchain
from opwright.kit.build.depends import Files
from opwright.kit.locks import unlocked_property
from opwright.kit.spec.options import Options

FORMAT = 6
"""Counted up when the way libraries are built changes, so that old ones are not taken for new."""

STABLE_TARGET = "0x020a000000000000"
"""PyTorch 2.10, the oldest whose stable ABI kernels use."""


VECTORISED = ("-ftree-vectorize", "-fvect-cost-model=dynamic")
"""What -O2 of g++ lacks to make loops fast, and g++ alone knows. The rest of -O3 makes a build a quarter longer and
no operator of ours faster; a kernel with small loops of its own may ask for it by `Options(cxxflags=("-O3",))`."""


DATA_APART = ("-fno-gnu-unique",)
"""With g++, what an extension has besides: else the tables and statics of inline functions and templates are one for
the process, and an edited extension that is loaded again would go on with the old ones."""

EXTENSION = ("-std=c++20", "-fPIC")
"""What torch.utils.cpp_extension.load gives the compiler, and it alone: extensions are tried with that."""
_WITHOUT = ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS", "HALF2_OPERATORS")
EXTENSION_CUDA = (*(f"-D__CUDA_NO_{each}__" for each in _WITHOUT), "--expt-relaxed-constexpr", "-Xcompiler", "-fPIC")


COMPILERS_ARCHIVES = "libstdc++.a:libsupc++.a:libstdc++fs.a"
"""What a compiler links by itself, where it brings libstdc++ as archives or is told -static-libstdc++."""


@dataclass(frozen=True)
class Plan:
    """One library: its sources and how they are compiled."""

    name: str
    sources: tuple[Path, ...]
    options: Options = field(default_factory=Options)
    defines: tuple[str, ...] = ()
    """`NAME=VALUE` for every source; `{key}` in a value becomes the build's key."""
    device: str = "cpu"
    soname: str = ""
    """What others that need the library know it by."""
    extension: bool = False
    """Whether it is built as torch.utils.cpp_extension builds: with its flags, and for the Python at hand."""
    verbose: bool = field(default=False, compare=False)
    """Whether to print the compiler's commands and what it says."""
    read: Files = field(default_factory=Files, compare=False, repr=False)
    """What its files hold, each read once: what the key speaks of is what was read then."""

    def anew(self) -> Plan:
        """The same, with its files read again."""
        return replace(self, read=Files(again=True))

    @unlocked_property
    def includes(self) -> tuple[Path, ...]:
        """Where headers of the project are looked for; PyTorch's and the system's come after."""
        folders = dict.fromkeys(() if self.extension else (s.parent for s in self.sources))
        own = [Path(p) if Path(p).is_absolute() else self.sources[0].parent / p for p in self.options.include]
        return (*folders, *own, toolchain.INCLUDE)

    @unlocked_property
    def searched(self) -> tuple[Path, ...]:
        """Where the compiler looks for headers that are not PyTorch's or the system's: as said in flags, too."""
        return (*self.includes, *depends.folders((*self.asked, *self.options.nvccflags)))

    @unlocked_property
    def asked(self) -> tuple[str, ...]:
        """The flags of its author. Folders in them that are relative begin where those of `include` do."""
        given = self.options.cxxflags
        return depends.absolute(given, self.sources[0].parent) if self.sources else given

    @unlocked_property
    def flags(self) -> tuple[str, ...]:
        if self.extension:
            return (*EXTENSION, *self.asked)
        return (*self._usual("-O2"), *self.asked)

    @property
    def hidden_archives(self) -> str:
        """The archives of which a library gives no symbol away. Some compilers bring libstdc++ as an archive alone. Two
        in a process, each of which takes some of the other's symbols, crash where a stream prints a number, or print
        nothing. What else an extension is linked with is its author's to show."""
        return COMPILERS_ARCHIVES if self.extension else "ALL"

    def for_gcc(self) -> tuple[str, ...]:
        """What g++ alone knows, and gets."""
        if not toolchain.compiler().is_gcc:
            return ()
        return DATA_APART if self.extension else () if self.options.debug else VECTORISED

    def _usual(self, *optimised: str) -> list[str]:
        usual = ["-std=c++20" if self.options.abi == "aten" else "-std=c++17", "-fPIC", "-fvisibility=hidden"]
        # What vectors need, and nothing that changes a result: a·x + b·y is rounded as PyTorch rounds it.
        usual += ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
        usual += ["-O1", "-g", "-DOPWRIGHT_DEBUG"] if self.options.debug else optimised
        stable = self.options.abi == "stable"
        usual.append(f"-DTORCH_TARGET_VERSION={STABLE_TARGET}" if stable else "-DOPWRIGHT_ATEN")
        # The stable headers show their functions for CUDA only to those who ask, in .cu files as in .cpp files.
        usual += ["-DUSE_CUDA"] if stable and self.device == "cuda" else []
        return usual

    @unlocked_property
    def arch(self) -> tuple[str, ...]:
        """The GPUs it is built for."""
        if self.extension and any("arch" in flag for flag in self.options.nvccflags):
            return ()  # its author says it in nvcc's own words
        return cuda.architectures(self.options.arch) if any(s.suffix == ".cu" for s in self.sources) else ()

    @unlocked_property
    def nvccflags(self) -> tuple[str, ...]:
        """The flags for `.cu` files: those of the compiler behind nvcc, and nvcc's own."""
        debug = self.options.debug
        if self.extension:
            standard = () if any(flag.startswith("-std=") for flag in self.options.nvccflags) else EXTENSION[:1]
            return (*standard, *EXTENSION_CUDA, *self.options.nvccflags)
        # What runs on the CPU only prepares launches: optimising that much would take longer than the kernels.
        asked = self.asked
        level = [] if any(flag.startswith("-O") for flag in asked) else ["-O1"]  # nvcc takes one
        flags = [*self._usual(*level), *asked]
        own = [flag for flag in flags if flag.startswith(("-D", "-U", "-std=", "-O", "-g"))]
        host = [flag for flag in flags if flag not in own]
        usual = [*own, "--extended-lambda", "--expt-relaxed-constexpr", "-diag-suppress=20012"]
        usual += ["-lineinfo"] if not debug else ["-G"]
        usual += [part for flag in host for part in ("-Xcompiler", flag.replace(",", "\\,"))]
        return (*usual, *(["-rdc=true"] if self.options.rdc else []), *self.options.nvccflags)

    @unlocked_property
    def headers(self) -> tuple[Path, ...]:
        """The project's headers that the sources include, found by reading them."""
        found: dict[Path, None] = {}
        waiting = list(self.sources)
        forced = depends.forced((*self.asked, *self.options.nvccflags))
        for name in forced if self.sources else ():
            self._find(self.sources[0], name, found, waiting)
        while waiting:
            file = waiting.pop()
            for each in self.read.included(file):
                self._find(file, each, found, waiting)
        return tuple(sorted(found))

    def _find(self, by: Path, name: str, found: dict[Path, None], waiting: list[Path]) -> None:
        for folder in (by.parent, *self.searched):
            header = self.read.place(os.path.join(folder, name))
            if header is not None:
                if header not in found:
                    found[header] = None
                    waiting.append(header)
                return

    @unlocked_property
    def more(self) -> tuple[Path, ...]:
        """Further headers, which only the compiler found when it was built before: their names were made by macros."""
        return tuple(self.located(name) for name in depends.known(self._first))

    @unlocked_property
    def files(self) -> tuple[Path, ...]:
        """All that it is made of."""
        return tuple(dict.fromkeys((*(s.resolve() for s in self.sources), *self.headers, *self.more)))

    def spelled(self, file: Path) -> str:
        """A file's name, the same in a copy of the project."""
        path = str(file)
        for label, folder in self._roots:
            if path.startswith(f"{folder}/"):
                return f"{label}:{path[len(folder) + 1 :]}"
        return depends.beside(file, Path(self._roots[0][1])) if self._roots else path

    def located(self, name: str) -> Path:
        """The file of a spelled name."""
        label, _, rest = name.partition(":")
        folder = dict(self._roots).get(label)
        return Path(name) if folder is None else (Path(folder) / rest).resolve()

    @unlocked_property
    def _roots(self) -> list[tuple[str, str]]:
        folders = [self.sources[0].parent, *self.searched] if self.sources else [*self.searched]
        return [(f"folder {i}", str(folder.resolve())) for i, folder in enumerate(folders)]

    @unlocked_property
    def uses_python(self) -> bool:
        """Whether it includes Python's headers, as torch/extension.h does."""
        if self.extension:
            return True
        read = (*self.sources, *self.headers)
        return any(_OF_PYTHON.search(name) for file in read for name in self.read.included(file))

    @unlocked_property
    def _content(self) -> dict[str, Any]:
        """What is in the library, wherever it is built."""
        content = {
            "format": FORMAT,
            "name": self.name,
            "sources": [(s.name, self.read.digest(s)) for s in self.sources],
            "headers": sorted((self.spelled(h), self.read.digest(h)) for h in self.headers),
            "archives": [self.read.digest(a) for a in depends.archives(self.options.ldflags)],
            "flags": self.flags,
            "ldflags": self.options.ldflags,
            "includes": [str(p) for p in self.options.include],
            "abi": self.options.abi,
            "defines": self.defines,
        }
        content |= {"soname": self.soname} if self.soname else {}
        content |= {"extension": self.hidden_archives} if self.extension else {}
        return content | ({"nvccflags": self.nvccflags} if self.device == "cuda" else {})

    @unlocked_property
    def key(self) -> str:
        """The hash of everything the library depends on."""
        more = [(self.spelled(h), self.read.digest(h)) for h in self.more]
        return _hash({"first": self._first, "more": more}) if more else self._first

    @unlocked_property
    def _first(self) -> str:
        """The hash of all that can be known without asking the compiler."""
        machine = {"compiler": toolchain.compiler().identity, "torch": toolchain.torch_identity()}
        if self.uses_python:
            machine |= {"python": str(sys.implementation.cache_tag)}
        if self.device == "cuda":
            machine |= {"arch": " ".join(self.arch), "nvcc": cuda.nvcc().identity}
        return _hash(self._content | machine)

    @unlocked_property
    def portable_key(self) -> str:
        """The hash of what is the same on every machine: a library built elsewhere is found by it. The whole of
        PyTorch's C++ is another with each torch, and on a GPU with each build of it; Python's with each Python."""
        machine = {"machine": platform.machine()}
        if self.options.abi == "aten":
            machine |= {"system": sys.platform, "torch": toolchain.torch_source()}
            machine |= {"build": toolchain.torch_identity().split()[0]} if self.device == "cuda" else {}
        if self.uses_python:
            machine |= {"python": str(sys.implementation.cache_tag)}
        return _hash(self._content | machine)

    def remember(self, more: Iterable[Path]) -> Plan:
        """The same, made of further headers that the compiler has found; known from now on, in other processes too."""
        depends.remember(self._first, [self.spelled(h) for h in sorted({*self.more, *more})])
        return replace(self)

    def of(self, source: Path) -> Plan:
        """What compiling one of its sources takes: an object, the same for every plan that has that source."""
        return replace(self, name=f"{self.name}: {source.name}", sources=(source,), options=self._compiling)

    @unlocked_property
    def _compiling(self) -> Options:
        return replace(self.options, ldflags=(), sources=())

    def filled_defines(self) -> list[str]:
        return [f"-D{d.replace('{key}', self.key[:16])}" for d in self.defines]


def _hash(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


_OF_PYTHON = re.compile(r"(^|/)(Python|extension|python\w*|pybind\w*)\.h$")
