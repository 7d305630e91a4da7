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
from opwright.kit.build.trouble import Refused, Unavailable
from opwright.kit.spec.options import Options
from opwright.version import __version__

FOLDER = "_opwright"
MANIFEST = "manifest.json"
FORMAT = 1
"""Counted up when shipped libraries are found or called in another way: those of before do not run then. Not the
cache's, which changes whenever they are built otherwise."""
RESERVED = ("aten", "prim", "prims", "torch", "user", "opwright_native", "opwright_kept", "opwright_exported")
"""Namespaces that are PyTorch's or opwright's own, or that of operators in nobody's package."""

Row = dict[str, Any]


class Unfit(Unavailable):
    """A library was shipped, and does not run here."""


class Manifest:
    """What a package ships."""

    def __init__(self, package: Path, content: dict[str, Any]) -> None:
        self.package, self.folder = package, package / FOLDER
        self.format = int(content["format"])
        # Rows of another format are for another opwright to read.
        known = self.format == FORMAT
        self.rows: list[Row] = [_checked(row, _OF_KERNELS) for row in content["libraries"]] if known else []
        self.own: list[Row] = [_checked(row, _OF_OWN) for row in content.get("own", [])] if known else []


_COMMON: dict[str, tuple[type, ...]] = {
    "file": (str,), "size": (int,), "sha256": (str,), "key": (str,), "system": (str,), "machine": (str,), "abi": (str,),
    "torch": (str, list), "python": (str, type(None)), "glibc": (list, type(None)), "arch": (list,),
    "cuda": (list, type(None)), "kernels": (list,),
}  # fmt: skip
_OF_KERNELS = _COMMON | {
    "source": (str,), "sources": (dict,), "device": (str,), "namespace": (str,), "options": (dict,)
}  # fmt: skip
_OF_OWN = _COMMON | {"part": (str,), "content": (str,)}


def _checked(row: Any, wanted: dict[str, tuple[type, ...]]) -> Row:
    """A row that can be relied upon; ValueError for any other."""
    for name, kinds in wanted.items():
        if not isinstance(row[name], kinds):
            raise ValueError(name)
    numbers = [row[name] for name in ("torch", "glibc", "cuda") if isinstance(row[name], list)]
    if any(len(each) != 2 or not all(isinstance(n, int) for n in each) for each in numbers):
        raise ValueError("versions")
    if isinstance(row["torch"], str) != (row["abi"] == "aten") or (row["arch"] and row["cuda"] is None):
        raise ValueError("abi")
    if not all(isinstance(each, list) and len(each) == 7 for each in row["kernels"]):
        raise ValueError("kernels")
    if not re.fullmatch(r"[\w.-]+\.so", row["file"]):
        raise ValueError("file")  # which lies beside the manifest, and nowhere else
    checked: Row = row
    return checked


def look_up(file: Path, more: Iterable[Path], namespace: str, device: str, options: Options) -> cache.Entry | None:
    """The library that was shipped for a source, if there is one for the source as it is now.

    Raises Unfit where it does not run here, and Refused where it must not be loaded.
    """
    file = file.resolve()
    manifest = _manifest_of(file.parent)
    if manifest is None:
        return None
    if manifest.format != FORMAT:
        raise Unfit(
            f"the libraries in {manifest.folder} are of a format that this opwright ({__version__}) does not read; "
            f"install one that fits, or the package again"
        )
    place = file.relative_to(manifest.package).as_posix()
    more = [each for each in map(Path.resolve, more) if each.is_relative_to(manifest.package)]
    found = [r for r in manifest.rows if (r["source"], r["device"], r["namespace"]) == (place, device, namespace)]
    alike = [r for r in found if r["options"] == spell_options(options, manifest.package)]
    rows = [r for r in alike if _same_sources(manifest.package, r, more)]
    if not found:
        return None
    if not rows:
        other = "of other sources than are here" if alike else "with other options than are asked for here"
        raise Unfit(f"the library that {manifest.package.name} ships for {place} was built {other}")
    _refuse_namespace(manifest, namespace)
    return _first_that_runs(manifest, rows)


def own_part(part: str, content: str) -> cache.Entry | None:
    """A part of opwright's own C++ that was shipped for this torch and this Python; None where there is none. Raises
    Unfit where its file is missing or cut short, and Refused where it must not be loaded."""
    manifest = _manifest_of(Path(__file__).parent)
    if manifest is None:
        return None
    rows = [row for row in manifest.own if (row["part"], row["content"]) == (part, content)]
    row = next((row for row in rows if _why_not(row) is None), None)
    return None if row is None else _open(manifest.folder / row["file"], row)


def own_torches() -> list[str]:
    """The torch versions that opwright's own C++ was shipped for."""
    manifest = _manifest_of(Path(__file__).parent)
    return [] if manifest is None else sorted({row["torch"] for row in manifest.own})


def own_files(part: str, content: str) -> dict[str, Path]:
    """The files of a part of opwright's own C++ that were shipped, for any torch on machines such as this, by torch's
    version."""
    manifest = _manifest_of(Path(__file__).parent)
    rows = [] if manifest is None else manifest.own
    here = (part, content, sys.platform, platform.machine())
    fit = [row for row in rows if (row["part"], row["content"], row["system"], row["machine"]) == here]
    return {} if manifest is None else {row["torch"]: _open(manifest.folder / row["file"], row).library for row in fit}


def _first_that_runs(manifest: Manifest, rows: list[Row]) -> cache.Entry:
    why = [_why_not(row) for row in rows]
    for row, reason in zip(rows, why, strict=True):
        if reason is None:
            return _open(manifest.folder / row["file"], row)
    file = manifest.folder / rows[0]["file"]
    raise Unfit(f"the library {file} that {manifest.package.name} ships does not run here: {why[0]}")


# --- whether it runs here ------------------------------------------------------------------------------------------


def _why_not(row: Row) -> str | None:
    """Why a library does not run here; None when it does."""
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
        flags = ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")
        descriptor = os.open(file, os.O_RDONLY | sum(getattr(os, flag, 0) for flag in flags))
    except FileNotFoundError:
        raise
    except OSError as e:
        raise Refused(f"{file} cannot be read ({e.strerror}), or is a link; install the package again") from None
    with open(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or file.parent.is_symlink():
            raise Refused(f"{file} is no plain file in a plain folder; install the package again")
        for place, found in ((file.parent, file.parent.lstat()), (file, os.fstat(descriptor))):
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
    if namespace == package and namespace not in RESERVED:
        return
    if is_anothers(namespace):
        raise Refused(
            f"{package} ships libraries for the namespace {namespace}, which is another package's; they are not "
            f"loaded; let its author take one of its own by @ow.op(namespace=…)"
        )


def is_anothers(namespace: str) -> bool:
    """Whether a namespace is PyTorch's, or another package's; a folder that merely has the name is none."""
    if namespace in RESERVED:
        return True
    try:
        found = importlib.util.find_spec(namespace)
    except (ImportError, ValueError):
        return True
    return found is not None and found.origin is not None


# --- reading the manifest ------------------------------------------------------------------------------------------


def package_of(folder: Path) -> Path | None:
    """The outermost package that a folder lies in; its own folder and those between may be no packages."""
    inside = next((above for above in (folder, *folder.parents) if _is_package(above, folder)), None)
    while inside is not None and _is_package(inside.parent, folder):
        inside = inside.parent
    return inside


def _is_package(folder: Path, below: Path) -> bool:
    """Whether a folder is a package that what lies below it may belong to: one that somebody else has put there, in
    /tmp for one, is none."""
    try:
        owner = os.stat(folder / "__init__.py").st_uid
    except OSError:
        return False
    beside = os.stat(below).st_uid if below.is_dir() else 0
    return os.name != "posix" or owner in (os.getuid(), 0, beside)


def _manifest_of(folder: Path) -> Manifest | None:
    """The manifest of the package that a folder lies in."""
    package = package_of(folder)
    if package is None:
        return None
    try:
        found = os.stat(package / FOLDER / MANIFEST)
    except OSError:
        return None
    return _parse(package, found.st_mtime_ns, found.st_ctime_ns)


@lru_cache
def _parse(package: Path, modified: int, changed: int) -> Manifest:
    file = package / FOLDER / MANIFEST
    try:
        content = _read(file)[0]
    except IsADirectoryError:
        raise Unfit(f"{file} is damaged; install the package again") from None
    try:
        return Manifest(package, json.loads(content))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Unfit(f"{file} is damaged; install the package again") from None


def _inside(folder: str, package: Path) -> str:
    place = Path(folder)
    if not place.is_absolute() or not place.resolve().is_relative_to(package):
        return folder
    return f"{package.name}/{place.resolve().relative_to(package).as_posix()}"


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


def spell_options(options: Options, package: Path) -> dict[str, Any]:
    """How kernels were to be compiled, as a manifest says it: but for the GPUs, which a library tells by itself, and
    with folders of the package as they lie in it."""
    said = {name: value for name, value in asdict(options).items() if name != "arch" and value}
    if options.include:
        said["include"] = [_inside(folder, package) for folder in options.include]
    spelled: dict[str, Any] = json.loads(json.dumps(said))
    return spelled
