"""What a build is made of: its files as they were read, and the headers that only the compiler can find."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from opwright.kit.build import cache, program, toolchain
from opwright.kit.build.trouble import NoCache

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*(?:include|include_next|import)[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_ASKED = re.compile(rb'__has_include[ \t]*\([ \t]*[<"]([^>"\n]+)[>"]')
_FOLDERS = ("-I", "-iquote", "-isystem", "-idirafter")
_FORCED = ("-include", "-imacros")
_VARIABLES = ("CPATH", "CPLUS_INCLUDE_PATH")


class Files:
    """Files as they were when they were first read: their digests, and what they include."""

    def __init__(self, again: bool = False) -> None:
        self.again = again
        """Whether they are read for the second time, since they changed after the first."""
        self._seen: dict[Path, tuple[str, tuple[str, ...]]] = {}
        self._places: dict[str, Path | None] = {}

    def _read(self, file: Path) -> tuple[str, tuple[str, ...]]:
        found = self._seen.get(file)
        if found is None:
            data = file.read_bytes()
            names = [*_INCLUDE.findall(data), *(_ASKED.findall(data) if b"__has_include" in data else ())]
            found = self._seen[file] = hashlib.sha256(data).hexdigest(), tuple(map(os.fsdecode, names))
        return found

    def digest(self, file: Path) -> str:
        """What tells its content from any other; of a file that is not there, nothing."""
        try:
            return self._read(file)[0]
        except FileNotFoundError:
            return ""

    def included(self, file: Path) -> tuple[str, ...]:
        """The names of the headers that it includes, or asks for."""
        return self._read(file)[1]

    def place(self, path: str) -> Path | None:
        """The file of a path, links followed; None: there is none."""
        if path not in self._places:
            self._places[path] = Path(os.path.realpath(path)) if os.path.isfile(path) else None
        return self._places[path]

    def changed(self, files: Sequence[Path], since: int | None) -> Path | None:
        """A file that is another than was read, or that was written after a time in nanoseconds."""
        for file in files:
            try:
                written = file.stat().st_ctime_ns
                now = hashlib.sha256(file.read_bytes()).hexdigest()
            except OSError:
                written, now = 0, ""
            if now != self.digest(file) or (since is not None and written > since):
                return file
        return None


def absolute(flags: Sequence[str], base: Path) -> tuple[str, ...]:
    """Flags with the folders of headers in them made absolute: the compiler runs in a folder of its own."""
    found: list[str] = []
    for i, flag in enumerate(flags):
        before = flags[i - 1] if i else ""
        word = next((w for w in _FOLDERS if flag.startswith(w) and flag != w), None)
        if before in _FOLDERS:
            found.append(str(base / flag))
        else:
            found.append(flag if word is None else f"{word}{base / flag[len(word) :].lstrip()}")
    return tuple(found)


def folders(flags: Sequence[str]) -> list[Path]:
    """The folders of headers that flags and the environment name."""
    listed = [os.environ.get(variable, "") for variable in _VARIABLES]
    named = [*_values(flags, _FOLDERS), *(p for paths in listed for p in paths.split(os.pathsep) if p)]
    return [Path(p) for p in dict.fromkeys(named) if os.path.isabs(p)]


def forced(flags: Sequence[str]) -> list[str]:
    """The files that flags include before a source."""
    return list(_values(flags, _FORCED))


def _values(flags: Sequence[str], words: Sequence[str]) -> Iterator[str]:
    for i, flag in enumerate(flags):
        if flag in words:
            yield from flags[i + 1 : i + 2]
        else:
            yield from (flag[len(w) :].lstrip() for w in words if flag.startswith(w) and flag != w)


def archives(flags: Sequence[str]) -> list[Path]:
    """The files whose code goes into a library by the linker's flags: named by their paths, or archives of a folder."""
    places = [Path(p) for p in _values(flags, ("-L",))]
    named = [Path(f) for f in flags if not f.startswith("-")]
    named += [place / f"lib{name}.a" for name in _values(flags, ("-l",)) for place in places]
    return [file for file in named if file.is_file()]


def beside(file: Path, folder: Path) -> str:
    """A file's way from a folder; where there is none but by the root, its own path."""
    try:
        way = os.path.relpath(file, folder)
    except ValueError:  # another drive
        return str(file)
    shared = os.path.commonpath([file, folder])
    return str(file) if shared == os.path.abspath(os.sep) else f"folder 0:{way}"


def read_by_compiler(depends: Path, besides: Sequence[Path]) -> list[Path]:
    """The files that a compiler says it has read (-MD), but for PyTorch's and the system's, and besides those of some
    folders."""
    text = depends.read_text(encoding="utf-8", errors="surrogateescape").partition(":")[2].replace("\\\n", " ")
    names = re.findall(r"(?:\\.|[^\s\\])+", text)
    paths = dict.fromkeys(Path(re.sub(r"\\(.)", r"\1", name).replace("$$", "$")).resolve() for name in names)
    outside = (*besides, *toolchain.torch_includes(), cache.folder() / "entries", cache.folder() / "building")
    system = [*(p.resolve() for p in outside), *_system(toolchain.compiler().command)]
    return [p for p in paths if not any(p.is_relative_to(folder) for folder in system) and p.is_file()]


@lru_cache
def _system(command: tuple[str, ...]) -> list[Path]:
    """Where a compiler looks for headers of itself: the system's, which its own packages see to."""
    environment = {k: v for k, v in os.environ.items() if k not in _VARIABLES} | {"LC_ALL": "C"}
    with contextlib.suppress(OSError):
        said = program.run([*command, "-E", "-v", "-x", "c++", os.devnull], env=environment).stderr
        listed = said.partition("search starts here:")[2].partition("End of search list")[0]
        return [Path(line.strip()).resolve() for line in listed.splitlines() if line.strip().startswith("/")]
    return [Path("/usr/include")]


def known(first: str) -> list[str]:
    """The headers that a compiler found beyond those that can be seen, when it built what has this key."""
    try:
        file = cache.folder() / cache.HEADERS / first
        found = json.loads(file.read_bytes())
        if time.time() - file.stat().st_mtime > cache.DAY:
            with contextlib.suppress(OSError):
                os.utime(file)  # as the mark of an entry's use
    except (OSError, ValueError, NoCache):
        return []
    return [str(name) for name in found] if isinstance(found, list) else []


def remember(first: str, names: Sequence[str]) -> None:
    """Note them, whole or not at all."""
    folder = cache.open_folder() / cache.HEADERS
    descriptor, part = tempfile.mkstemp(dir=folder)
    with open(descriptor, "w", encoding="utf-8") as written:
        json.dump(list(names), written)
    os.replace(part, folder / first)
