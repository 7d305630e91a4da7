"""Libraries that came with a package: its kernels, built where the wheel was made.

A package that ships them has a folder `_opwright` with the libraries and a manifest that says what each was made from
and where it runs. They are looked up before anything is compiled, by the source's place in the package and its content,
so that an edited source is never taken for what was built of another.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import stat
import sys
from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from opwright.kit.build import cache, cuda
from opwright.kit.build.plan import FORMAT
from opwright.kit.build.trouble import Refused, Unavailable
from opwright.kit.spec.options import Options

FOLDER = "_opwright"
MANIFEST = "manifest.json"
DEEPEST = 8
"""How many folders below its package's an operator's source may lie."""
RESERVED = ("aten", "prim", "prims", "torch", "opwright_native", "opwright_kept")
"""Namespaces that are PyTorch's, or opwright's own."""

Row = dict[str, Any]


class Unfit(Unavailable):
    """A library was shipped, and does not run here."""


class Manifest:
    """What a package ships."""

    def __init__(self, package: Path, content: dict[str, Any]) -> None:
        self.package, self.folder = package, package / FOLDER
        self.rows: list[Row] = content["libraries"]
        self.own: list[Row] = content.get("own", [])
        self.format: int = content["format"]


def look_up(file: Path, more: Iterable[Path], namespace: str, device: str, options: Options) -> cache.Entry | None:
    """The library that was shipped for a source, if there is one for the source as it is now.

    Raises Unfit where it does not run here, and Refused where it must not be loaded.
    """
    manifest = _manifest_of(file.parent)
    if manifest is None:
        return None
    place = file.relative_to(manifest.package).as_posix()
    rows = [r for r in manifest.rows if (r["source"], r["device"], r["namespace"]) == (place, device, namespace)]
    rows = [r for r in rows if r["options"] == spell_options(options) and _same_sources(manifest.package, r, more)]
    if not rows:
        return None
    _refuse_namespace(manifest, namespace)
    return _first_that_runs(manifest, rows)


def own_part(part: str, content: str) -> cache.Entry | None:
    """A part of opwright's own C++ that was shipped for this torch and this Python; None where there is none."""
    manifest = _manifest_of(Path(__file__).parent)
    if manifest is None:
        return None
    rows = [row for row in manifest.own if (row["part"], row["content"]) == (part, content)]
    try:
        return _first_that_runs(manifest, rows) if rows else None
    except Unfit:
        return None


def own_torches() -> list[str]:
    """The torch versions that opwright's own C++ was shipped for."""
    manifest = _manifest_of(Path(__file__).parent)
    return [] if manifest is None else sorted({row["torch"] for row in manifest.own})


def _first_that_runs(manifest: Manifest, rows: list[Row]) -> cache.Entry:
    why = [_why_not(manifest, row) for row in rows]
    for row, reason in zip(rows, why, strict=True):
        if reason is None:
            return _open(manifest.folder / row["file"], row)
    file = manifest.folder / rows[0]["file"]
    raise Unfit(f"the library {file} that {manifest.package.name} ships does not run here: {why[0]}")


# --- whether it runs here ------------------------------------------------------------------------------------------


def _why_not(manifest: Manifest, row: Row) -> str | None:
    """Why a library does not run here; None when it does."""
    if manifest.format != FORMAT:
        return f"it was made by opwright {row.get('opwright', '?')}, whose libraries are other than this one's"
    if (row["system"], row["machine"]) != (sys.platform, platform.machine()):
        return f"it is for {row['system']} on {row['machine']}, this is {sys.platform} on {platform.machine()}"
    here = release_of(torch.__version__)
    if row["abi"] == "aten" and row["torch"] != public_version():
        return f"it is for torch {row['torch']} alone, this is {torch.__version__}"
    if row["abi"] == "stable" and here is not None and here < tuple(row["torch"]):
        return f"it needs torch {'.'.join(map(str, row['torch']))} or newer, this is {torch.__version__}"
    if row["python"] not in (None, sys.implementation.cache_tag):
        return f"it is for {row['python']}, this is {sys.implementation.cache_tag}"
    libc, version = platform.libc_ver()
    if libc == "glibc" and row["glibc"] and tuple(map(int, version.split(".")[:2])) < tuple(row["glibc"]):
        return f"it needs glibc {'.'.join(map(str, row['glibc']))}, this is {version}"
    return _why_not_on_gpu(row) if row["arch"] else None


def _why_not_on_gpu(row: Row) -> str | None:
    here, known, built = cuda.gpus(), cuda.driver(), row["cuda"]
    if known is not None and here and built[0] > known[0]:
        return (
            f"it was built with CUDA {built[0]}.{built[1]}, and the driver here knows CUDA {known[0]}.{known[1]}; "
            f"install a newer driver, or a wheel that was made with a CUDA {known[0]} toolkit"
        )
    lost = next((gpu for gpu in here if not cuda.runs_on(row["arch"], gpu.capability)), None)
    return None if lost is None else f"it has code for {', '.join(row['arch'])}, and none for the {lost} here"


def release_of(version: str) -> tuple[int, int] | None:
    """The first two numbers of a version; None where there are none, as in a company's own builds."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def public_version() -> str:
    """torch's version without what tells builds of one source apart: those have the same C++."""
    return torch.__version__.partition("+")[0]


# --- whether it may be loaded --------------------------------------------------------------------------------------


def _open(file: Path, row: Row) -> cache.Entry:
    """The library of a row, if it is the one that was shipped and nobody else could have changed it."""
    try:
        content, seen = _read(file)
    except FileNotFoundError:
        raise Unfit(f"the library {file} is missing; install the package again") from None
    if len(content) < row["size"]:
        raise Unfit(f"the library {file} is cut short; install the package again")
    if hashlib.sha256(content).hexdigest() != row["sha256"]:
        raise Refused(
            f"the library {file} is not the one that was shipped: its digest is another; it is not loaded. Install the "
            f"package again, and find out who changed it"
        )
    return cache.Entry(file, row, seen)


def _read(file: Path) -> tuple[bytes, tuple[int, ...]]:
    """A file's content and identity, where nobody but its owner can write it."""
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise
    except OSError as e:
        raise Refused(f"{file} cannot be read ({e.strerror}), or is a link; install the package again") from None
    with open(descriptor, "rb") as opened:
        for place, found in ((file.parent, file.parent.stat()), (file, os.fstat(descriptor))):
            _refuse_open(place, found, file.parent.parent)
        return opened.read(), cache.identity(os.fstat(descriptor))


def _refuse_open(place: Path, found: os.stat_result, package: Path) -> None:
    """Raise when somebody else could have written what is about to be loaded. Whoever owns the package's Python, which
    runs already, need not be asked; nor the group that is the user's own, which many systems let write."""
    if os.name != "posix":
        return
    trusted = (os.getuid(), 0, package.stat().st_uid)
    if found.st_uid not in trusted:
        raise Refused(
            f"{place} belongs to another user than its package, so nothing is loaded from it; install it anew"
        )
    group = found.st_mode & stat.S_IWGRP and found.st_gid not in (0, os.getgid())
    if found.st_mode & stat.S_IWOTH or group:
        raise Refused(f"{place} can be written by others, so nothing is loaded from it; `chmod go-w {place}`")


def _refuse_namespace(manifest: Manifest, namespace: str) -> None:
    """Raise for operators that would take the place of another package's."""
    package = manifest.package.name
    if namespace == package:
        return
    if namespace in RESERVED or importlib.util.find_spec(namespace) is not None:
        raise Refused(
            f"{package} ships libraries for the namespace {namespace}, which is another package's; they are not "
            f"loaded; let its author take one of its own by @ow.op(namespace=…)"
        )


# --- reading the manifest ------------------------------------------------------------------------------------------


def _manifest_of(folder: Path) -> Manifest | None:
    """The manifest of the package that a folder lies in."""
    for above in (folder, *folder.parents[:DEEPEST]):
        if os.path.isfile(above / FOLDER / MANIFEST):
            file = above / FOLDER / MANIFEST
            found = os.stat(file)
            return _parse(above, found.st_mtime_ns, found.st_size)
    return None


@lru_cache
def _parse(package: Path, modified: int, size: int) -> Manifest:
    file = package / FOLDER / MANIFEST
    content = _read(file)[0]
    try:
        return Manifest(package, json.loads(content))
    except (ValueError, KeyError, TypeError):
        raise Unfit(f"{file} is damaged; install the package again") from None


def _same_sources(package: Path, row: Row, more: Iterable[Path]) -> bool:
    """Whether a row's library was made of the sources as they are now; those that are gone count as they were."""
    there = {name: package / name for name in row["sources"]}
    known = {path.resolve() for path in there.values()}
    if any(path.resolve() not in known for path in more if path.is_file()):
        return False  # a header that was not there then
    return all(digest_of(path) in (None, row["sources"][name]) for name, path in there.items())


def digest_of(file: Path) -> str | None:
    """The hash of a file's content; None where there is no such file."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


def spell_options(options: Options) -> dict[str, Any]:
    """How kernels were to be compiled, as a manifest says it: but for the GPUs, which a library tells by itself."""
    said = {name: value for name, value in asdict(options).items() if name != "arch" and value}
    spelled: dict[str, Any] = json.loads(json.dumps(said))
    return spelled
