"""What CMake needs to make a library of operators: generated sources, and a file that names all sources and flags."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from opwright.kit.build import bound, compile, own, toolchain
from opwright.kit.build.library import Library
from opwright.kit.build.plan import Plan
from opwright.kit.cpp import messages
from opwright.kit.cpp.header import header, literal
from opwright.kit.op import Op

CMAKE: Path = Path(__file__).parent.parent.parent / "cmake"
"""The folder that `find_package(opwright)` looks for."""
NATIVE = "libopwright_native.so"
QUIET = "-w"
"""Whatever a project wants to be warned of, and takes for an error: of its own code."""


class NoLibrary(Exception):
    """A library cannot be made, and why."""


class Part(NamedTuple):
    """A library of a target: the sources of one kernel file. A linker takes one copy of an inline function from
    whatever object has it; what another file calls the same may be another function, or compiled otherwise."""

    name: str
    library: Library
    plan: Plan
    key: str


def generate(target: str, operators: Sequence[Op[..., Any]], to: Path, *, with_cuda: bool) -> list[str]:
    """Write what CMake needs for a target into a folder; gives what was left out, and why."""
    if not re.fullmatch(r"[A-Za-z_]\w*", target, re.ASCII):
        raise NoLibrary(f"a target of operators is called as C++ may call it, by letters, digits and _, got {target!r}")
    libraries, left = _libraries(operators, with_cuda)
    keys = {library: f"{target}_{_short(target, str(to))}_{n}" for n, library in enumerate(libraries)}
    served = messages.served(operators, keys)
    if not served:
        more = "; ".join(left or [f"{op.name}: it has no kernel in C++" for op in operators])
        raise NoLibrary(f"{target}: no operator has a kernel that can be built{': ' + more if more else ''}")
    left += [f"{op.name}: it has no kernel in C++" for op in operators if op not in served]
    parts = [Part(f"{target}_{n}", each, each.plan(), keys[each]) for n, each in enumerate(libraries)]
    public = [op for op in served if op.home is op]
    _put(to / "include" / target / "operators.h", header(target, public))
    _put(to / "registry.cpp", _registry(target, messages.text(operators, keys)))
    _put(to / "expected.txt", _expected(served, parts))
    _put_native(to)
    _put(to / "operators.cmake", _listing(operators, parts, to))
    return left


def _libraries(operators: Iterable[Op[..., Any]], with_cuda: bool) -> tuple[list[Library], list[str]]:
    """The libraries whose sources go in, and which do not."""
    found: dict[Library, None] = {}
    left: dict[str, None] = {}
    for rung in dict.fromkeys(rung for op in operators for rung in op.ladder):
        for kernel in rung.kernels:
            if kernel.library is None:
                left[f"{rung.name}: its kernel {kernel.name} is in Python"] = None
            elif kernel.device == "cuda" and not with_cuda:
                file = kernel.library.file
                left[f"{file.parent.name}/{file.name}: the project does not enable the language CUDA"] = None
            else:
                found[kernel.library] = None
    return list(found), list(left)


def _short(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def _put(file: Path, text: str) -> None:
    """Write a file, unless it says so already: its date tells what is to be built again."""
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def _put_native(to: Path) -> None:
    """Copy opwright's own C++ for this torch beside what is generated, built first where it is missing."""
    entry = own.built("native", own.native) or compile.build(own.native())
    copy = to / NATIVE
    content = Path(entry.to_load()).read_bytes()
    if not copy.is_file() or copy.read_bytes() != content:
        to.mkdir(parents=True, exist_ok=True)
        partial = to / f"{NATIVE}.new"
        partial.write_bytes(content)
        partial.replace(copy)


def _registry(target: str, text: str) -> str:
    pieces = re.findall(r"(?s).{1,4000}", text)
    lines = "\n".join(f"    {literal(piece)}" for piece in pieces)
    return (
        f"// What is said of the operators of {target}. Written by opwright; changes are lost.\n"
        f"#include <opwright/library.h>\n\nOPWRIGHT_LIBRARY({target},\n{lines});\n"
    )


def _expected(operators: Sequence[Op[..., Any]], parts: Sequence[Part]) -> str:
    """The types that each kernel must have, for the check after the build (cmake/verify.py)."""
    lines = []
    for part in parts:
        for op in operators:
            if any(kernel.library is part.library for kernel in op.kernels):
                file = str(part.library.file)
                lines.append("\t".join((part.name, op.name, part.library.device, file, *bound.wanted(op))))
    return "\n".join(lines) + "\n"


# --- for CMake -----------------------------------------------------------------------------------------------------


def _listing(operators: Sequence[Op[..., Any]], parts: Sequence[Part], to: Path) -> str:
    lines = [
        "# Written by opwright; changes are lost.",
        _set("_ow_torch_version", torch.__version__.partition("+")[0]),
        _set("_ow_torch_includes", *map(str, toolchain.torch_includes())),
        _set("_ow_torch_libraries", str(toolchain.torch_libraries())),
        _set("_ow_include", str(toolchain.INCLUDE)),
        _set("_ow_generated", str(to)),
        _set("_ow_read", *_read(operators)),
        _set("_ow_registry_options", *Plan("registry", ()).flags, QUIET),
        _set("_ow_parts", *(part.name for part in parts)),
    ]
    for part in parts:
        lines += _part(part)
    return "\n".join(lines) + "\n"


def _read(operators: Sequence[Op[..., Any]]) -> list[str]:
    """What Python read of the operators: their files, the modules beside those, and the versions of what it read by."""
    own_files = {Path(op.file).resolve() for op in operators if op.file}
    beside = {file for own_file in own_files for file in own_file.parent.glob("*.py")}
    versions = {Path(torch.__file__).parent / "version.py", CMAKE.parent / "version.py", *own.NATIVE.glob("*.cpp")}
    return sorted(str(file) for file in {*own_files, *beside, *versions} if file.is_file())


def _part(part: Part) -> list[str]:
    plan = part.plan
    # A project may want -ffast-math for its own code; numbers of a kernel are to be those of Python.
    flags = ["-fno-fast-math", *plan.flags, "$<$<CXX_COMPILER_ID:GNU>:-ftree-vectorize>"]
    flags.append("$<$<CXX_COMPILER_ID:GNU>:-fvect-cost-model=dynamic>")
    options = [f"$<$<COMPILE_LANGUAGE:CXX>:{_escaped(flag)}>" for flag in flags]
    if all(source.is_relative_to(CMAKE.parent) for source in plan.sources):  # opwright's: nobody's to mend there
        options.append(QUIET)
    # CMake leaves out what stands twice, and each flag for the compiler behind nvcc stands after one.
    for_nvcc = " ".join(plan.nvccflags).replace("-Xcompiler ", "-Xcompiler=").split()
    options += [f"$<$<COMPILE_LANGUAGE:CUDA>:{_escaped(flag)}>" for flag in for_nvcc]
    name, compiles_cuda = part.name, any(source.suffix == ".cu" for source in plan.sources)
    return [
        _set(f"_ow_sources_of_{name}", *map(str, plan.sources)),
        _set(f"_ow_options_of_{name}", *options),
        _set(f"_ow_definitions_of_{name}", *(d.replace("{key}", part.key) for d in plan.defines)),
        _set(f"_ow_includes_of_{name}", *(str(p) for p in plan.includes if p != toolchain.INCLUDE)),
        _set(f"_ow_ldflags_of_{name}", *plan.options.ldflags),
        _set(f"_ow_rdc_of_{name}", "ON" if plan.options.rdc else "OFF"),
        _set(f"_ow_needs_runtime_of_{name}", "ON" if plan.device == "cuda" and not compiles_cuda else "OFF"),
    ]


def _escaped(flag: str) -> str:
    """A flag inside a generator expression, which ends at the first >."""
    return flag if flag.startswith("$<") else flag.replace(">", "$<ANGLE-R>").replace(",", "$<COMMA>")


def _set(name: str, *values: str) -> str:
    return f"set({name} {' '.join(map(_quote, values))})"


def _quote(text: str) -> str:
    """A text as CMake reads it back."""
    equals = ""
    while f"]{equals}]" in text or text.endswith(f"]{equals}"):
        equals += "="
    return f"[{equals}[{text}]{equals}]"
