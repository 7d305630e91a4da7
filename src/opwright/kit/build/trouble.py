"""What can go wrong with a build, told so that a reader knows what to do next."""

from __future__ import annotations

import re
from pathlib import Path


class BuildError(RuntimeError):
    """A source does not compile or link: its author must fix it."""


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
    return BuildError(f"{name}: it does not compile\n{first_message(log)}{where}")
