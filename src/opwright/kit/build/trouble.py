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
            line, j = _at_the_author(lines, i)
            shown = [line]
            for follow in lines[j + 1 : j + SHOWN_LINES] if j is not None else _source(line):
                # g++ shows `3 | x;`, nvcc indents the line itself.
                if not re.match(r"\s+\d* *\||\s{4,}\S", follow):
                    break
                shown.append(follow)
            return "\n".join(shown)
    return "\n".join(lines[-3:]) or "the compiler said nothing"


_HEADERS = re.compile(r"/(opwright|torch)/include/|^/usr/|/include/c\+\+/")
"""Files that no author of a kernel has written."""
_PLACE = re.compile(r"^(/[^:(]+)(?::\d+(?::\d+)?|\(\d+\))(?=:)")
_USED = re.compile(
    r"^(?P<at>/[^:(]+:\d+(?::\d+)?):.*(?:required (?:from|by)|requested here)|at line (?P<n>\d+) of (?P<file>/.+)$"
)
_MACRO = re.compile(r"^(?P<at>/[^:(]+:\d+(?::\d+)?): note: (?:in expansion of|expanded from) macro 'OPWRIGHT_")


def _at_the_author(lines: list[str], i: int) -> tuple[str, int | None]:
    """What a compiler says of a header that its reader has not written, and the line of the author's it is about: a
    kernel that is bound, or a template that is used. Then which line shows the source; None: none does.

    >>> _at_the_author(["/opwright/include/opwright/kernel.h:9:2: error: static assertion failed: f: write double",
    ...                 "/a.cpp:3:1: note: in expansion of macro 'OPWRIGHT_KERNEL'"], 0)
    ('/a.cpp:3:1: error: f: write double', 1)
    >>> _at_the_author(["/a.cpp:4:15:   required from here", "/opwright/include/map.h:13:8: error: no type"], 1)
    ('/a.cpp:4:15: error: no type (in map.h)', None)
    """
    place = _PLACE.match(lines[i])
    if place is None or not _HEADERS.search(place[1]):
        return lines[i], i
    said = lines[i].partition("error: ")[2]
    sentence = re.sub(r'^static assertion failed( with|: )?\s*"?|"$', "", said)
    if "opwright/kernel.h:" in lines[i] and "error: expected ';'" in lines[i]:
        sentence = "expected ';' after OPWRIGHT_KERNEL(…)"
    many = "address of overloaded function" in said or "overloaded function could not be resolved" in said
    after = next((j for j in range(i + 1, len(lines)) if "error:" in lines[j]), len(lines))
    for j in range(i + 1, after):
        macro = _MACRO.match(lines[j])
        if macro and not _HEADERS.search(macro["at"]):
            sentence = (
                "a function that is bound must be no template, and the only one of its name" if many else sentence
            )
            return f"{macro['at']}: error: {sentence}", j
    # g++ says before it how it came there, clang and nvcc behind it; the nearest of the author's lines is first.
    before = i
    while before and "error:" not in lines[before - 1] and not re.match(r"\s+\d* *\|", lines[before - 1]):
        before -= 1
    for j in (*range(before, i), *range(i + 1, after)):
        used = _USED.search(lines[j])
        at = None if used is None else used["at"] or f"{used['file']}({used['n']})"
        if at is not None and not _HEADERS.search(at):
            if many and place[1].endswith(("/map.h", "/rows.h")):
                return f"{at}: error: the function must name the types of its parameters, as [](float v) does", None
            own = "" if sentence != said else f" (in {Path(place[1]).name})"
            return f"{at}: error: {sentence}{own}", None
    return lines[i], i


def _source(line: str) -> list[str]:
    """The line of a file that a message is about, as compilers show it."""
    found = re.match(r"(/[^:(]+)[:(](\d+)", line)
    if found is None:
        return []
    try:
        text = Path(found[1]).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    number = int(found[2])
    return [f"{number:>5} | {text[number - 1]}"] if number <= len(text) else []


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
