"""What CMake needs to make a library of operators: generated sources, and a file that names all sources and flags."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opwright.kit.build import bound, compile, own, toolchain
from opwright.kit.build.library import Library
from opwright.kit.build.plan import Plan
from opwright.kit.cpp import messages
from opwright.kit.cpp.header import header
from opwright.kit.op import Op

CMAKE: Path = Path(__file__).parent.parent.parent / "cmake"
"""The folder that `find_package(opwright)` looks for."""
NATIVE = "libopwright_native.so"


class NoLibrary(Exception):
    """A library cannot be made, and why."""


@dataclass(frozen=True)
class Part:
    """Sources that are compiled alike, one library of a target."""

    name: str
    plans: tuple[Plan, ...]


def generate(target: str, operators: Sequence[Op[..., Any]], to: Path, *, with_cuda: bool) -> list[str]:
    """Write what CMake needs for a target into a folder; gives what was left out, and why."""
    if not re.fullmatch(r"[A-Za-z_]\w*", target, re.ASCII):
        raise NoLibrary(f"a target of operators is called as C++ may call it, by letters, digits and _, got {target!r}")
    libraries, left = _libraries(operators, with_cuda)
    keys = {library: f"{target}_{_short(target, str(to))}_{n}" for n, library in enumerate(libraries)}
    served = messages.served(operators, keys)
    if not served:
        more = "; ".join(left)
        raise NoLibrary(f"{target}: no operator has a kernel that can be built{': ' + more if more else ''}")
    left += [f"{op.name}: it has no kernel in C++" for op in operators if op not in served]
    plans = {library: library.plan() for library in libraries}
    public = [op for op in served if op.home is op]
    _put(to / "include" / target / "operators.h", header(target, public))
    _put(to / "registry.cpp", _registry(target, messages.text(operators, keys)))
    _put(to / "expected.txt", _expected(served, keys))
    _put_native(to)
    _put(to / "operators.cmake", _listing(target, operators, [*_parts(target, libraries, plans)], keys, plans, to))
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


def _parts(target: str, libraries: Sequence[Library], plans: dict[Library, Plan]) -> Iterable[Part]:
    """Sources with flags of their own, and those for GPUs, get a library of their own: a linker takes one copy of an
    inline function from whatever object has it, and that one may have been compiled otherwise."""
    usual = ("cpu", (), False, "stable")
    alike: dict[Any, list[Plan]] = {usual: []}
    for library in libraries:
        options = library.options
        kind = (library.device, options.cxxflags, options.debug, options.abi)
        alike.setdefault(kind, []).append(plans[library])
    for n, group in enumerate(alike.values()):
        yield Part(target if n == 0 else f"{target}_{n + 1}", tuple(group))


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
    literal = "\n".join(f"    {_literal(piece)}" for piece in pieces)
    return (
        f"// What is said of the operators of {target}. Written by opwright; changes are lost.\n"
        f"#include <opwright/library.h>\n\nOPWRIGHT_LIBRARY({target},\n{literal});\n"
    )


def _literal(text: str) -> str:
    out = []
    for byte in text.encode():
        out.append(chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}")
    return '"' + "".join(out) + '"'


def _expected(operators: Sequence[Op[..., Any]], keys: dict[Library, str]) -> str:
    """The types that each kernel must have, for the check after the build (cmake/verify.py)."""
    lines = []
    for op in operators:
        for kernel in op.kernels:
            if kernel.library in keys:
                lines.append("\t".join((op.name, kernel.device, str(kernel.library.file), *bound.wanted(op))))
    return "\n".join(lines) + "\n"


# --- for CMake -----------------------------------------------------------------------------------------------------


def _listing(
    target: str,
    operators: Sequence[Op[..., Any]],
    parts: Sequence[Part],
    keys: dict[Library, str],
    plans: dict[Library, Plan],
    to: Path,
) -> str:
    by_plan = {id(plan): keys[library] for library, plan in plans.items()}
    read = sorted({str(Path(op.file).resolve()) for op in operators if op.file})
    lines = [
        "# Written by opwright; changes are lost.",
        _set("_ow_torch_version", torch.__version__.partition("+")[0]),
        _set("_ow_torch_includes", *map(str, toolchain.torch_includes())),
        _set("_ow_torch_libraries", str(toolchain.torch_libraries())),
        _set("_ow_include", str(toolchain.INCLUDE)),
        _set("_ow_generated", str(to)),
        _set("_ow_operator_files", *read),
        _set("_ow_parts", *(part.name for part in parts)),
    ]
    for part in parts:
        lines.append(_set(f"_ow_sources_of_{part.name}", *(str(s) for plan in part.plans for s in plan.sources)))
        for plan in part.plans:
            for source in plan.sources:
                lines += _source(target, plan, source, by_plan[id(plan)])
    registry = Plan("registry", ()).flags
    lines += [
        f"set_source_files_properties({_quote(str(to / 'registry.cpp'))} TARGET_DIRECTORY {target} PROPERTIES",
        f"    COMPILE_OPTIONS {_quote(';'.join(registry))})",
    ]
    return "\n".join(lines) + "\n"


def _source(target: str, plan: Plan, source: Path, key: str) -> list[str]:
    on_gpu = source.suffix == ".cu"
    flags = list(plan.nvccflags if on_gpu else plan.flags)
    if not on_gpu:
        flags += ["$<$<CXX_COMPILER_ID:GNU>:-ftree-vectorize>", "$<$<CXX_COMPILER_ID:GNU>:-fvect-cost-model=dynamic>"]
    defines = [d.replace("{key}", key) for d in plan.defines]
    includes = [str(p) for p in plan.includes if p != toolchain.INCLUDE]
    return [
        f"set_source_files_properties({_quote(str(source))} TARGET_DIRECTORY {target} PROPERTIES",
        f"    COMPILE_OPTIONS {_quote(';'.join(flags))}",
        f"    COMPILE_DEFINITIONS {_quote(';'.join(defines))}",
        f"    INCLUDE_DIRECTORIES {_quote(';'.join(includes))})",
    ]


def _set(name: str, *values: str) -> str:
    return f"set({name} {' '.join(map(_quote, values))})"


def _quote(text: str) -> str:
    """A text as CMake reads it back."""
    equals = ""
    while f"]{equals}]" in text or text.endswith(f"]{equals}"):
        equals += "="
    return f"[{equals}[{text}]{equals}]"
