"""Kernels that tell which of their lines ran: the compiler's instrumentation, and what it saw of one call.

Both compilers call functions of ours (`native/coverage`) at each block and comparison. Which address stands for which
line is asked of objdump, once a library.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch

from opwright.kit.build import cache, compile, own
from opwright.kit.build.library import Library
from opwright.kit.build.trouble import BuildError, Refused, Unavailable
from opwright.kit.check.constants import written_in

FLAGS = "-fsanitize-coverage=trace-pc,trace-cmp -g1 -gdwarf-4 -O0"
"""Not optimised: two branches that the compiler makes one cannot be told apart. objdump takes some functions of headers
for the source's own where lines are told in a newer format."""
SYMBOL = "opwright_coverage_1"
PLACES, PLACE = 1 << 20, 24
"""As native/coverage has them: how many places there are, and the bytes of each."""
LESS, EQUAL, GREATER = 1, 2, 4

_MARK = re.compile(r"(?:; )?(/.+):(\d+)(?: \(discriminator \d+\))?")
_FUNCTION = re.compile(r"[0-9a-f]+ <.*>:")
_STEP = re.compile(r"\s*([0-9a-f]+):\s")
_END = re.compile(r"\t(?:jmpq?|retq?|ud2|br?)\b|<_Unwind_Resume|<__cxa_(?:throw|rethrow)")
"""Whatever follows is reached from elsewhere: the end of a function after its cleaning up, say."""
_HOOK = re.compile(r"<__sanitizer_cov_trace_(\w+)>")


def disassembler() -> str | None:
    return shutil.which("objdump") or shutil.which("llvm-objdump")


def unavailable() -> str | None:
    """Why no kernel can tell here which of its lines ran; None where it can."""
    if sys.platform != "linux":
        return "coverage is read on Linux alone"
    if disassembler() is None:
        return "there is no objdump here to tell a kernel's lines by; it comes with binutils"
    return None


def environment() -> dict[str, str]:
    """The environment of a worker whose kernels are built to tell. Where they cannot be, `skip` says so there."""
    if unavailable() is not None:
        return {}
    try:
        linked = shlex.quote(str(compile.build_object(own.coverage())))
    except (Unavailable, Refused, BuildError):
        return {}
    more = {"OPWRIGHT_CXXFLAGS": FLAGS, "OPWRIGHT_LDFLAGS": linked}
    return {name: f"{os.environ.get(name, '')} {text}".strip() for name, text in more.items()}


Line = tuple[str, int]


@dataclass
class Sites:
    """Where a library calls us: places of blocks, of comparisons with what they compare, and lines by their blocks."""

    blocks: list[int] = field(default_factory=list)
    compared: list[tuple[int, str]] = field(default_factory=list)
    lines: dict[Line, set[int]] = field(default_factory=dict)

    def leave_out(self, run: list[tuple[int, Line | None]]) -> None:
        """Of blocks in a row, the last ones of one line, which clean up after an error: the compiler wrote them."""
        for place, line in reversed(run):
            if line != run[-1][1]:
                break
            if line is not None:
                self.blocks.remove(place)
                self.lines[line].discard(place)
                if not self.lines[line]:
                    del self.lines[line]


def read_sites(dump: Iterable[str], files: Iterable[Path], moved: tuple[str, str] = ("", "")) -> Sites:
    """The sites in some files, from what `objdump -dl` says of a library. What was built of the same sources in another
    folder serves too: `moved` is that folder, and the one at hand."""
    wanted = {str(file.resolve()) for file in files}
    built, now = moved

    @lru_cache
    def real(name: str) -> str:
        inside = bool(built) and name.startswith(built + os.sep)
        return os.path.realpath(now + name[len(built) :] if inside else name)

    found = Sites()
    at: Line | None = None  # where the author wrote what stands here
    hook, hooked = "", at  # the one that was called by the step before, and where
    block: int | None = None
    run: list[tuple[int, Line | None]] = []  # blocks since somebody jumped, and where they begin
    before: set[Line] = set()  # lines ahead of the block that they belong to

    for text in dump:
        step = _STEP.match(text)
        if step is None:
            mark = _MARK.fullmatch(text.rstrip())
            if mark is not None:
                file = real(mark[1])
                at = (file, int(mark[2])) if file in wanted else None
            elif _FUNCTION.match(text):
                at, block, before, run, hook = None, None, set(), [], ""
            continue
        if hook:
            place = int(step[1], 16) >> 2  # the address that the call returns to, which is what it tells
            if hook == "pc":
                block = place
                run.append((place, hooked))
                for line in before:
                    found.lines.setdefault(line, set()).add(block)
                before = set()
                if hooked is not None:
                    found.blocks.append(place)
            elif hooked is not None:
                found.compared.append((place, "real" if hook in ("cmpf", "cmpd") else "whole"))
        called = _HOOK.search(text)
        hook, hooked = (called[1], at) if called else ("", None)
        if at is not None and hook != "pc":
            if block is None:
                before.add(at)
            else:
                found.lines.setdefault(at, set()).add(block)
        elif at is not None and hook == "pc":
            before.add(at)  # the call is its block's first step
        ends = _END.search(text)
        if ends:
            if "Unwind" in ends[0]:
                found.leave_out(run)
            block, before, run = None, set(), []
    return found


class Instrumented:
    """A library that is loaded and tells. NotInstrumented where it was built otherwise."""

    def __init__(self, library: Library) -> None:
        handle = ctypes.CDLL(str(library.loaded))
        try:
            memory = (ctypes.c_uint8 * (PLACES * PLACE)).in_dll(handle, SYMBOL)
        except ValueError:
            raise NotInstrumented(library.file.name) from None
        tool = disassembler()
        assert tool is not None
        command = [tool, "-dl", "--no-show-raw-insn", str(library.loaded)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True)
        files = written_in(library)
        about = json.loads((Path(str(library.loaded)).parent / cache.ABOUT).read_text(encoding="utf-8"))
        moved = str(Path(about["sources"][0]).parent), str(library.file.parent)
        sites = read_sites(done.stdout.splitlines(), files, moved)
        self.library = library
        self.folder = library.file.resolve().parent
        self.blocks, self.compared, self.lines = sites.blocks, sites.compared, sites.lines
        self._seen = torch.frombuffer(memory, dtype=torch.uint8).view(PLACES, PLACE)
        self._blocks = torch.tensor(self.blocks, dtype=torch.int64)
        self._compared = torch.tensor([place for place, _ in self.compared], dtype=torch.int64)
        self.ran = set(self.take().ran)
        """Places of blocks that ever ran, with loading."""

    def take(self) -> Seen:
        """What was seen since this was last asked."""
        ran = self._blocks[self._seen[self._blocks, 16] != 0].tolist()
        rows = self._seen[self._compared]
        compared = {}
        for i in rows[:, 16].nonzero().flatten().tolist():
            place, kind = self.compared[i]
            row = bytes(rows[i].tolist())
            left, right = struct.unpack_from("<dd" if kind == "real" else "<qq", row)
            compared[place] = Compared(kind, row[17], row[18], left, right)
        self._seen[self._blocks] = 0
        self._seen[self._compared] = 0
        return Seen(ran, compared)

    def told(self) -> dict[str, tuple[list[int], list[int]]]:
        """By file of the operator's folder: its lines with code, and those of them that ran."""
        found: dict[str, tuple[list[int], list[int]]] = {}
        for (file, line), blocks in sorted(self.lines.items()):
            if Path(file).is_relative_to(self.folder):
                known, ran = found.setdefault(file, ([], []))
                known.append(line)
                if blocks & self.ran:
                    ran.append(line)
        return found


@dataclass(frozen=True)
class Compared:
    """A comparison: its outcomes, and the operands that came nearest to each other, 64 being equal."""

    kind: str
    outcomes: int
    near: int
    left: float
    right: float


@dataclass(frozen=True)
class Seen:
    """What one call did: places of blocks that ran, and comparisons."""

    ran: list[int]
    compared: dict[int, Compared]


class NotInstrumented(Exception):
    """A library was not built to tell which of its lines ran."""


def attach(libraries: Iterable[Library]) -> list[Instrumented]:
    """The libraries of kernels that are loaded here."""
    found = []
    for library in dict.fromkeys(libraries):
        with contextlib.suppress(NotInstrumented):
            if library.loaded is not None:
                found.append(_attached(library, str(library.loaded)))
    return found


@lru_cache
def _attached(library: Library, loaded: str) -> Instrumented:
    return Instrumented(library)
