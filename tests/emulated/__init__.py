"""Kernels for CUDA on the CPU, where there is no GPU: their sources, compiled by a C++ compiler.

include/ has CUDA's words, as far as the kernels use them. The threads of a block take turns on one thread of the CPU,
each until it waits for others, in an order that a seed draws; blocks run one after another. So this finds what is
wrong in a kernel's logic: indices, sums, who writes what, barriers that not all reach, loads that are not aligned,
values that nobody wrote to shared memory, and what hangs on an order that nobody promises.

It proves nothing of what only a GPU has: its memory model and caches, threads that truly run at once (a race that shows
in no order of whole steps between two meetings stays unseen), its own code (a fused product and sum is rounded twice
here, PTX stands for what it says), limits of registers, streams, graphs, and speed. Kernels whose heart is PTX, as the
persistent ones of lltm, are left out.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import opwright as ow

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "opwright"
INCLUDE = Path(__file__).resolve().parent / "include"

FLAGS = ("-O1", "-U_FORTIFY_SOURCE", "-fsanitize=alignment,bounds", "-Wno-unknown-pragmas", "-Wno-attributes")
"""glibc's check of longjmp takes a change of stacks for an error. What is not aligned is an error on a GPU."""

IN_CPP = {
    # Kept in a register, which changes nothing.
    r'asm volatile("" : "+l"(x));': "",
    r'asm("ex2.approx.f32 %0, %1;" : "=f"(result) : "f"(power.high));': "result = exp2f(power.high);",
    r'asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(power.high));': "result = emulated::flushed("
    "exp2f(power.high));",
    r'asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(sum));': "inverse = emulated::flushed("
    "1.0f / emulated::flushed(sum));",
    r"""asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; " MOVE " %0, %3; @p " LOAD " %0, [%1]; }" \
                 : "=&" KIND(bits) \
                 : "l"(from), "r"(static_cast<int>(is)), KIND(other))""": "bits = is ? "
    "emulated::load<Bits<T>>(LOAD, from) : other",
    r"""asm volatile(
                "{ .reg .pred p; setp.ne.b32 p, %5, 0;"
                " mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
                " @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                : "=&r"(raw.x), "=&r"(raw.y), "=&r"(raw.z), "=&r"(raw.w)
                : "l"(from), "r"(static_cast<int>(is)));""": "raw = is ? emulated::load_four(from) : uint4{};",
    # Which kernel a launch is of is known by its address alone: its type is remembered before.
    "const auto with = [&](P... converted) {": "emulated::remember(kernel); const auto with = [&](P... converted) {",
    # The device is the CPU.
    "#define OPWRIGHT_RUN_CPU run\n": "#define OPWRIGHT_RUN_CPU run_on_device\n",
}
"""What is no C++, or is more than that, and what stands for it."""


def translated(text: str) -> str:
    """A source or header for CUDA as C++."""
    for cuda, cpp in IN_CPP.items():
        pattern = r"\s+(?:\\\s+)?".join(re.escape(word) for word in re.split(r"\s+(?:\\\s+)?", cuda.strip()))
        text = re.sub(pattern, cpp.replace("\\", r"\\"), text)
    memory = r"static \1* const \2 = reinterpret_cast<\1*>(emulated::Machine::dynamic_shared());"
    text = re.sub(r"extern __shared__ ([\w ]+?) (\w+)\[\];", memory, text)
    text = re.sub(r"__shared__ ([\w:]+) ([^;]+);", _shared, text)
    text = re.sub(r"(OPWRIGHT_(?:KERNEL|EXPLAINS)\(\w+, )CUDA\b", r"\1CPU", text)
    left = re.search(r"\basm\b.*|\b__shared__\b.*|<<<.*", re.sub(r"//.*", "", text))
    if left:
        raise ValueError(f"nobody said what this is in C++: {left[0]}")
    return text


def _shared(found: re.Match[str]) -> str:
    """Arrays that the threads of a block share: blocks run one after another, so that they may be static."""
    names = [re.match(r"\s*(\w+)", each) for each in re.split(r",(?![^\[(<]*[\])>])", found[2])]
    shares = " ".join(f"emulated::Machine::get().share(&{n[1]}, sizeof({n[1]}));" for n in names if n)
    return f"static {found[1]} {found[2]}; {shares}"


def headers(folder: Path, changes: Mapping[str, str] = {}) -> Path:
    """opwright's headers as C++, and CUDA's own, below the folder."""
    to = folder / "include"
    shutil.copytree(INCLUDE, to)
    for file in (PACKAGE / "include" / "opwright").glob("*.*h"):
        _write(file, to / "opwright", changes)
    return to


BESIDE = re.compile(r'^#include "\.\./(\w+)/([\w.]+)"', re.MULTILINE)


def _write(file: Path, to: Path, changes: Mapping[str, str]) -> None:
    """A header or source for CUDA as C++, and what it includes of the folders beside its own. Errors speak of the lines
    that it has where it comes from."""
    source = file.read_text(encoding="utf-8")
    text = translated(source)
    for old, new in changes.items():
        text = text.replace(old, new)
    head = "#include <emulated.h>\n" if file.suffix == ".cu" else ""
    to.mkdir(exist_ok=True)
    name = f"{file.stem}_emulated.cpp" if head else file.name
    (to / name).write_text(f'{head}#line 1 "{file}"\n{text}', encoding="utf-8")
    for folder, other in BESIDE.findall(source):
        if not (to.parent / folder / other).exists():
            _write(file.parent.parent / folder / other, to.parent / folder, changes)


def operators(folder: Path, *names: str | Path, namespace: str = "emulated", changes: Mapping[str, str] = {}) -> Any:
    """Operators of the library, by name, or of other folders, as those of a package in `folder`, whose kernels for CUDA
    run on the CPU and take tensors there. `changes`: texts of the sources and what to put in their place, such as sizes
    that would take too much memory here."""
    headers(folder, changes)
    package = folder / namespace
    package.mkdir()
    (package / "__init__.py").touch()
    for name in names:
        source = name if isinstance(name, Path) else PACKAGE / "ops" / name
        own = package / source.name
        for file in source.iterdir():
            if file.suffix in (".cu", ".cuh", ".h"):
                _write(file, own, changes)
        text = _declared((source / "op.py").read_text(encoding="utf-8"), source.name)
        (own / "op.py").write_text(text, encoding="utf-8")
        (own / "__init__.py").touch()
    return ow.load(package)


def _declared(text: str, name: str) -> str:
    """The file of an operator with the emulated kernels in place of its own."""
    text = re.sub(r"^from \.\.(?=\w)", "from opwright.ops.", text, flags=re.MULTILINE)
    text = re.sub(r"^from \.(?=\w)", f"from opwright.ops.{name}.", text, flags=re.MULTILINE)
    more = tuple(f"{stem}_emulated.cpp" for stem in re.findall(r'"(\w+)\.cu"', text) if stem != "cuda")
    text = re.sub(r"^ON_GPU = .*\n|^\w+\.kernel_files\(\"cpu.cpp\", domain.*\n", "", text, flags=re.MULTILINE)
    # From the operator's folder on, so that libraries are the same wherever that is, and built once.
    options = f'ow.Options(sources={more}, include=("../../include",), cxxflags={FLAGS})'
    kernels = re.compile(
        r'^(\w+)\.kernel_files\((?:"cpu.cpp", )?"cuda.cu", (.*?)(?:, options=ON_GPU)?\)$', re.MULTILINE
    )
    text, count = kernels.subn(rf'\1.kernel_files("cuda_emulated.cpp", \2, options={options})', text)
    if not count:
        raise ValueError(f"{name} declares no kernel for CUDA as others do")
    return text


def functions(folder: Path, source: str, *names: str) -> Any:
    """Functions of a string of CUDA, to be called with tensors on the CPU."""
    options = ow.Options(include=(str(headers(folder)),), cxxflags=FLAGS)
    return ow.inline(f"#include <emulated.h>\n{translated(source)}", functions=names, options=options)
