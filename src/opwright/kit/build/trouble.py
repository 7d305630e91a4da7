"""What can go wrong with a build, told so that a reader knows what to do next."""

from __future__ import annotations

import re
from pathlib import Path

from opwright.kit.build import places


class BuildError(RuntimeError):
    """A source does not compile or link: its author must fix it."""

    def __str__(self) -> str:
        return places.told(super().__str__())


class WrongKernel(BuildError):
    """A source compiles, and what it binds does not fit the operator."""


class Refused(RuntimeError):
    """A library that came with a package must not be loaded: somebody may have changed it."""


class Unavailable(RuntimeError):
    """This machine cannot build or keep the library right now; references run instead."""


class NoCache(Unavailable):
    """There is no place to keep libraries in. What is said of it holds for every operator, so it is said once."""


SHOWN_LINES = 6


def first_message(log: str) -> str:
    """The first real message of a compiler or linker with the source line it points at.

    >>> print(first_message("In file included from a.h:1:\\na.cpp:3:5: error: no 'x' here\\n  3 | x;\\n    | ^"))
    a.cpp:3:5: error: no 'x' here
      3 | x;
        | ^
    """
    lines = log.splitlines()
    pattern = re.compile(
        r"(fatal )?error:|nvcc fatal|undefined reference|cannot find -l|multiple definition|No such file"
    )
    for i, line in enumerate(lines):
        if pattern.search(line):
            line, i = _at_the_kernel(lines, i)
            shown = [line]
            for follow in lines[i + 1 : i + SHOWN_LINES]:
                # g++ shows `3 | x;`, nvcc indents the line itself.
                if not re.match(r"\s+\d* *\||\s{4,}\S", follow):
                    break
                shown.append(follow)
            return "\n".join(shown)
    return "\n".join(lines[-3:]) or "the compiler said nothing"


def _at_the_kernel(lines: list[str], i: int) -> tuple[str, int]:
    """A sentence that kernel.h says of a kernel, and the line it is about: g++ puts it where the header says it.

    >>> _at_the_kernel(["kernel.h:9:2: error: static assertion failed: f: write double",
    ...                 "a.cpp:3:1: note: in expansion of macro 'OPWRIGHT_KERNEL'"], 0)
    ('a.cpp:3:1: error: f: write double', 1)
    """
    _, failed, sentence = lines[i].partition("error: static assertion failed: ")
    if "opwright/kernel.h:" in lines[i] and "error: expected ';'" in lines[i]:
        failed, sentence = "a ; is missing", "expected ';' after OPWRIGHT_KERNEL(…)"
    if failed:
        for j in range(i + 1, len(lines)):
            place, macro, _ = lines[j].partition(": note: in expansion of macro 'OPWRIGHT_KERNEL'")
            if macro:
                return f"{place}: error: {sentence}", j
            if "error:" in lines[j]:
                break
    return lines[i], i


def explain_failure(name: str, code: int, log: str, log_file: Path | None) -> Exception:
    """The exception for a compiler that did not succeed."""
    where = f"\nThe whole log: {log_file}" if log_file else ""
    if code in (-9, 137) or "Killed signal" in log or "out of memory" in log or "virtual memory exhausted" in log:
        return Unavailable(
            f"{name}: the compiler was killed, most likely for lack of memory; close other programs, or set "
            f"OPWRIGHT_JOBS=1, and try again{where}"
        )
    if "No space left on device" in log:
        return Unavailable(
            f"{name}: the disk that holds the cache is full; make room, or let OPWRIGHT_CACHE_DIR name another{where}"
        )
    return BuildError(f"{name}: it does not compile\n{_about_headers(log) or first_message(log)}{where}")


def _about_headers(log: str) -> str | None:
    """What to do about an error inside PyTorch's headers that comes from how they are included; None: it does not."""
    lines = log.splitlines()
    i = next((i for i, line in enumerate(lines) if re.search(r"error:|nvcc fatal", line)), None)
    if i is None or "/torch/include/" not in lines[i].partition("error:")[0]:
        return None
    place = _included_at(lines[:i])
    if place is None:
        return None
    file, number = place
    try:
        above = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()[:number]
    except OSError:
        above = []
    header = _header(above[-1]) if len(above) == number else None
    if "TORCH_STABLE_ONLY or TORCH_TARGET_VERSION" in lines[i]:
        return (
            f"{file}:{number}: error: {header or 'a header'} is not of PyTorch's stable ABI, which kernels use; "
            'add options=ow.Options(abi="aten") where the kernel file is declared, or include <opwright/aten.h> instead'
        )
    ours = next((n for n, line in enumerate(above[:-1], 1) if (_header(line) or "").startswith("<opwright/")), None)
    if ours is not None and header is not None:
        return (
            f"{file}:{number}: error: {header} must come before {_header(above[ours - 1])} (line {ours}), "
            "which opens its namespace to what stands below it; swap the two"
        )
    return None


def _header(line: str) -> str | None:
    """What a line includes, in angle brackets.

    >>> _header('#include "torch/extension.h"  // all of it')
    '<torch/extension.h>'
    """
    found = re.match(r'[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', line)
    return f"<{found[1]}>" if found else None


def _included_at(before: list[str]) -> tuple[str, int] | None:
    """Where an author's file includes a header of PyTorch's: the last line about it before an error.

    >>> _included_at(["In file included from /torch/include/ATen/A.h:5,", "                 from /my/cpu.cpp:2:"])
    ('/my/cpu.cpp', 2)
    """
    pairs: list[tuple[str, int]] = []
    for line in reversed(before):
        found = re.match(r"(In file included|\s+) ?from (.+?):(\d+)(:\d+)?[,:]$", line)
        if found:
            pairs.append((found[2], int(found[3])))
        elif pairs:
            break
    # g++ names the innermost first, clang last; an author's own headers stand between.
    outermost_first = len(pairs) > 1 and "/torch/include/" in pairs[0][0]
    authors = [pair for pair in pairs if "/torch/include/" not in pair[0]]
    return None if not authors else authors[0] if outermost_first else authors[-1]
