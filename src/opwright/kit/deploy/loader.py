"""Loads a model that `ow.package` wrote, with the operators that it calls.

This file needs the standard library and PyTorch alone: copy it beside a program that has no opwright, or let
`python -m opwright loader` print it.

    model = load_package("model.pt2", trust=True)

The libraries in an archive are code, and run with the rights of whoever loads them. They are loaded when the caller
says `trust=True` and not before; `sha256` is what the archive must be, by a word that came another way. They are
unpacked into the user's own cache folder and held against the archive's digests each time. There is no reference
without opwright: a call outside of a kernel's domain is an error that says so.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch

FOLDER = "opwright/"
"""Where an archive has what is opwright's: `manifest`, `operators`, and libraries."""
FORMAT = "1"


class NotLoaded(RuntimeError):
    """A model's operators cannot be loaded, and why."""


def load_package(file: str | os.PathLike[str], *, trust: bool = False, sha256: str | None = None, **how: Any) -> Any:
    """Load a model and the operators that travel with it; `how` goes to torch.export.load or aoti_load_package.

    Gives what PyTorch's own loader gives: an ExportedProgram, or for a compiled model a function.
    """
    names = load_operators(file, trust=trust, sha256=sha256)
    if any("/data/aotinductor/" in name for name in names):
        return torch._inductor.aoti_load_package(os.fspath(file), **how)
    return torch.export.load(file, **how)


def load_operators(file: str | os.PathLike[str], *, trust: bool = False, sha256: str | None = None) -> list[str]:
    """Load the operators of an archive into this process; gives the names of all that is in the archive."""
    path = Path(file)
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if sha256 is not None and digest != sha256.lower().removeprefix("sha256:"):
        raise NotLoaded(f"{path}: its SHA-256 is {digest}, and {sha256} was expected; fetch it again")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            rows = _read_manifest(path, archive, names)
            if rows is None:
                return names
            code = [row for row in rows if row[0] in ("native", "library")]
            if code and not trust:
                raise NotLoaded(
                    f"{path}: it holds {len(code)} libraries, which are code; pass trust=True if you trust who wrote "
                    f"it, and sha256={digest!r} to accept this very file"
                )
            said = _member(archive, names, "operators").decode()
            _load(path, archive, names, rows, said)
    except (zipfile.BadZipFile, EOFError, UnicodeDecodeError) as e:
        raise NotLoaded(f"{path}: it is cut short or changed ({e}); fetch it again") from None
    return names


def _read_manifest(path: Path, archive: zipfile.ZipFile, names: list[str]) -> list[list[str]] | None:
    if not any(name.partition("/")[2] == FOLDER + "manifest" for name in names):
        return None  # a model without operators of ours
    rows = [line.split("\t") for line in _member(archive, names, "manifest").decode().splitlines()]
    if not rows or rows[0] != ["format", FORMAT]:
        raise NotLoaded(f"{path}: its operators are of format {rows[0][1:] if rows else 'none'}, and this loader reads "
                        f"{FORMAT}; take the loader of the opwright that wrote it")  # fmt: skip
    return rows


def _member(archive: zipfile.ZipFile, names: list[str], name: str) -> bytes:
    [found] = [each for each in names if each.partition("/")[2] == FOLDER + name]
    return archive.read(found)


def _load(path: Path, archive: zipfile.ZipFile, names: list[str], rows: list[list[str]], said: str) -> None:
    """Load what fits this machine, and check that the operators are those of the model."""
    version = torch.__version__.partition("+")[0]
    [wire] = [row[1] for row in rows if row[0] == "wire"]
    libraries = []
    if not torch._C._jit_get_schemas_for_operator("opwright_native::load"):
        natives = {row[3]: row for row in rows if row[0] == "native"}
        if version not in natives:
            raise NotLoaded(
                f"{path}: it was written for torch {', '.join(sorted(natives))}, and this is torch {version}; "
                f"package the model again where torch is {version}"
            )
        libraries.append(natives[version])
    libraries += [row for row in rows if row[0] == "library" and (row[3] == "cpu" or torch.cuda.is_available())]
    place = _private_folder()
    for _, name, digest, *_ in libraries:
        torch.ops.load_library(str(_unpack(place, _member(archive, names, name), digest, f"{path}: {name}")))
    native: Any = torch.ops.opwright_native
    if hashlib.sha256(native.wire().encode()).hexdigest() != wire:
        raise NotLoaded(f"{path}: another version of opwright is in this process than the one that wrote it")
    trouble = native.load(said)
    if trouble:
        raise NotLoaded(f"{path}: {trouble}")
    for _, op, schema in (row for row in rows if row[0] == "operator"):
        there = [str(s) for s in torch._C._jit_get_schemas_for_operator(op) if not s.overload_name]
        if there != [schema]:
            raise NotLoaded(f"{path}: the model calls {schema}, and here is {there[0] if there else 'none'}")


def _private_folder() -> Path:
    """A folder of the user's own; nobody else may write to what is loaded from it."""
    asked, given = os.environ.get("OPWRIGHT_CACHE_DIR", ""), os.environ.get("XDG_CACHE_HOME", "")
    root = Path(asked) if asked else (Path(given) if given else Path.home() / ".cache") / "opwright"
    place = root.expanduser().absolute() / "packages"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in (place.parent, place):
        about = each.stat()
        if about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise NotLoaded(
                f"{each}: others can write to it; chmod go-w, or set OPWRIGHT_CACHE_DIR to a folder of yours"
            )
    return place


def _unpack(place: Path, content: bytes, digest: str, what: str) -> Path:
    """A library as a file of its own, by its digest."""
    if hashlib.sha256(content).hexdigest() != digest:
        raise NotLoaded(f"{what} is not what the archive's list says: it was changed")
    target = place / f"{digest}.so"
    if not target.is_file() or target.read_bytes() != content:
        handle, partial = tempfile.mkstemp(dir=place)
        with os.fdopen(handle, "wb") as out:
            out.write(content)
        os.replace(partial, target)
    return target
