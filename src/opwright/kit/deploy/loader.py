"""Loads a model that `ow.package` wrote, with the operators that it calls.

This file needs the standard library and PyTorch alone: copy it beside a program that has no opwright, or let
`python -m opwright loader` print it.

    model = load_package("model.pt2", trust=True)

The libraries in an archive are code, and run with the rights of whoever loads them; so is a compiled model. They are
loaded when the caller says `trust=True` and not before; `sha256` is what the archive must be, by a word that came
another way. They are unpacked into the user's own cache folder and held against the archive's digests each time. There
is no reference without opwright: a call outside of a kernel's domain is an error that says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import os
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

FOLDER = "opwright/"
"""Where an archive has what is opwright's: `manifest`, `operators`, and libraries."""
FORMAT = "1"
WEIGHTS = ("data/weights/", "data/constants/")
"""Where an archive has numbers, which can be many and run nothing; of all else its manifest has digests."""
WORDS = {"wire": 2, "library": 5, "native": 4, "member": 3, "operator": 3}
"""How many words the rows of a manifest have, by the first."""


class NotLoaded(RuntimeError):
    """A model's operators cannot be loaded, and why."""


def load_package(file: str | os.PathLike[str], *, trust: bool = False, sha256: str | None = None, **how: Any) -> Any:
    """Load a model and the operators that travel with it; `how` goes to torch.export.load or aoti_load_package.

    Gives what PyTorch's own loader gives: an ExportedProgram, or for a compiled model a function.
    """
    content = _held(Path(file), sha256)
    names = _load_operators(Path(file), content, trust)
    if not _is_compiled(names):
        return torch.export.load(file if content is None else io.BytesIO(content), **how)
    if content is None:
        return torch._inductor.aoti_load_package(os.fspath(file), **how)
    # Of the very bytes that were held against the digest: what lies under the file's name may be another by now.
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "model.pt2"
        copy.write_bytes(content)
        return torch._inductor.aoti_load_package(str(copy), **how)


def load_operators(file: str | os.PathLike[str], *, trust: bool = False, sha256: str | None = None) -> list[str]:
    """Load the operators of an archive into this process; gives the names of all that is in the archive."""
    return _load_operators(Path(file), _held(Path(file), sha256), trust)


def _held(path: Path, sha256: str | None) -> bytes | None:
    """The content of a file that must be the one that was meant; None where any may be."""
    if sha256 is None:
        return None
    wanted = sha256.strip().lower().removeprefix("sha256:")
    if len(wanted) != 64 or set(wanted) - set("0123456789abcdef"):
        raise NotLoaded(f"{path}: sha256 must be the 64 hexadecimal digits of a SHA-256, got {sha256!r}")
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != wanted:
        raise NotLoaded(f"{path}: its SHA-256 is {digest}, and {wanted} was expected; fetch it again")
    return content


def _is_compiled(names: list[str]) -> bool:
    return any("/data/aotinductor/" in name for name in names)


def _load_operators(path: Path, content: bytes | None, trust: bool) -> list[str]:
    try:
        with zipfile.ZipFile(path if content is None else io.BytesIO(content)) as archive:
            names = archive.namelist()
            rows = _read_manifest(path, archive, names)
            libraries = [row for row in rows if row[0] in ("native", "library")]
            code = [f"{len(libraries)} libraries"] if libraries else []
            code += ["a compiled model"] if _is_compiled(names) else []
            if code and not trust:
                raise NotLoaded(
                    f"{path}: it holds {' and '.join(code)}, which is code; pass trust=True if you trust who wrote it, "
                    "and sha256=… where they told you what it must be"
                )
            if rows:
                _compare(path, archive, names, {row[1]: row[2] for row in rows if row[0] == "member"})
                _load(path, archive, names, rows, _member(path, archive, names, "operators").decode())
    except (zipfile.BadZipFile, zlib.error, EOFError, UnicodeDecodeError) as e:
        raise NotLoaded(f"{path}: it is cut short or changed ({e}); fetch it again") from None
    return names


def _read_manifest(path: Path, archive: zipfile.ZipFile, names: list[str]) -> list[list[str]]:
    """The rows of an archive's manifest, each of a known kind; none: a model without operators of ours."""
    if not any(name.partition("/")[2] == FOLDER + "manifest" for name in names):
        return []
    first, *rows = [line.split("\t") for line in _member(path, archive, names, "manifest").decode().splitlines()] or [
        []
    ]
    if first != ["format", FORMAT]:
        raise NotLoaded(
            f"{path}: its operators are of format {' '.join(first[1:]) or 'none'}, and this loader reads {FORMAT}; "
            "take the loader of the opwright that wrote it"
        )
    wrong = next((row for row in rows if WORDS.get(row[0]) != len(row)), None)
    if wrong is not None or [row[0] for row in rows].count("wire") != 1:
        raise NotLoaded(
            f"{path}: its manifest was changed{'' if wrong is None else f' ({wrong[0]!r})'}; fetch it again"
        )
    return rows


def _compare(path: Path, archive: zipfile.ZipFile, names: list[str], digests: dict[str, str]) -> None:
    """Hold the model itself against the manifest; PyTorch compares nothing."""
    there = sorted(name for name in names if not name.partition("/")[2].startswith((FOLDER, *WEIGHTS)))
    if [name.partition("/")[2] for name in there] != sorted(digests):
        raise NotLoaded(f"{path}: it holds other files than its list says: it was changed")
    for name in there:
        if hashlib.sha256(archive.read(name)).hexdigest() != digests[name.partition("/")[2]]:
            raise NotLoaded(f"{path}: {name.partition('/')[2]} is not what the archive's list says: it was changed")


def _member(path: Path, archive: zipfile.ZipFile, names: list[str], name: str) -> bytes:
    found = [each for each in names if each.partition("/")[2] == FOLDER + name]
    if len(found) != 1:
        raise NotLoaded(f"{path}: it has {len(found)} of {FOLDER}{name}, and must have one; fetch it again")
    return archive.read(found[0])


def _load(path: Path, archive: zipfile.ZipFile, names: list[str], rows: list[list[str]], said: str) -> None:
    """Load what fits this machine, and check that the operators are those of the model."""
    version = torch.__version__.partition("+")[0]
    place = _private_folder()

    def load(row: list[str]) -> None:
        file = _unpack(place, _member(path, archive, names, row[1]), row[2], f"{path}: {row[1]}")
        try:
            torch.ops.load_library(str(file))
        except OSError as e:
            raise NotLoaded(f"{path}: {row[1]} cannot be loaded: {e.__cause__ or e}") from None
        if row[0] == "library":
            offer(str(file))

    if not torch._C._jit_get_schemas_for_operator("opwright_native::load"):
        natives = {row[3]: row for row in rows if row[0] == "native"}
        if version not in natives:
            raise NotLoaded(
                f"{path}: it was written for torch {', '.join(sorted(natives))}, and this is torch {version}; "
                f"package the model again where torch is {version}"
            )
        load(natives[version])
    native: Any = torch.ops.opwright_native
    [wire] = [row[1] for row in rows if row[0] == "wire"]
    if hashlib.sha256(native.wire().encode()).hexdigest() != wire:
        raise NotLoaded(f"{path}: another version of opwright is in this process than the one that wrote it")
    for row in (row for row in rows if row[0] == "library" and (row[3] == "cpu" or torch.cuda.is_available())):
        known = torch._C._dispatch_has_kernel(row[4])
        if not known or not torch._C._dispatch_has_kernel_for_dispatch_key(row[4], row[3].upper()):
            load(row)  # unless others have the same build
    trouble = native.load(said)
    if trouble:
        raise NotLoaded(f"{path}: {trouble}")
    for _, op, schema in (row for row in rows if row[0] == "operator"):
        there = [str(s) for s in torch._C._jit_get_schemas_for_operator(op) if not s.overload_name]
        if there != [schema]:
            raise NotLoaded(f"{path}: the model calls {schema}, and here is {there[0] if there else 'none'}")


def offer(library: str) -> None:
    """Hand what a library lists of its kernels to opwright's own C++, which calls them without detours then."""
    with contextlib.suppress(AttributeError):  # one that lists none
        listed = ctypes.CDLL(library).opwright_offered_1
        listed.restype = ctypes.c_void_p
        take = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(torch.ops.opwright_native.offer())
        take(listed())


def _private_folder() -> Path:
    """A folder of the user's own; nobody else may write to what is loaded from it."""
    asked, given = os.environ.get("OPWRIGHT_CACHE_DIR", ""), os.environ.get("XDG_CACHE_HOME", "")
    root = Path(asked) if asked else (Path(given) if given else Path.home() / ".cache") / "opwright"
    place = root.expanduser().absolute() / "packages"
    for each in reversed([place, *place.parents]):
        each.mkdir(mode=0o700, exist_ok=True)
    for each in (place, *place.parents):
        about = each.stat()
        # On the way there, others may write where they cannot take away what is not theirs.
        safe = about.st_mode & stat.S_ISVTX if each not in (place, place.parent) else 0
        if about.st_uid not in (os.geteuid(), 0) or (about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not safe):
            raise NotLoaded(
                f"{each}: others can write to it; chmod go-w, or set OPWRIGHT_CACHE_DIR to a folder of yours"
            )
    return place


def _unpack(place: Path, content: bytes, digest: str, what: str) -> Path:
    """A library as a file of its own, by its digest."""
    if hashlib.sha256(content).hexdigest() != digest:
        raise NotLoaded(f"{what} is not what the archive's list says: it was changed")
    target = place / f"{digest}.so"
    if not _is_ours(target) or target.read_bytes() != content:
        handle, partial = tempfile.mkstemp(dir=place)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(content)
            os.replace(partial, target)
        except BaseException:
            os.unlink(partial)
            raise
    return target


def _is_ours(file: Path) -> bool:
    try:
        about = file.lstat()
    except OSError:
        return False
    open_to_others = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(about.st_mode) and about.st_uid in (os.geteuid(), 0) and not open_to_others
