"""Where results are kept, and what an operator is known by there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from opwright.kit.bench import machine as this
from opwright.kit.build import cache
from opwright.kit.op import Op
from opwright.kit.spec.captured import digest

HEADERS = Path(__file__).parents[2] / "include"
"""The package's own, which its version speaks for."""


def project() -> Path:
    """The project one stands in: the nearest folder with a pyproject.toml or a .git, else the current one."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "pyproject.toml").is_file() or (folder / ".git").exists():
            return folder
    return here


def folder() -> Path:
    """Where results are kept: OPWRIGHT_RESULTS_DIR, else the project's benchmarks/results if one stands beside it, else
    a folder for the project in the user's cache."""
    asked = os.environ.get("OPWRIGHT_RESULTS_DIR", "")
    if asked:
        return Path(asked).expanduser().absolute()
    here = Path("benchmarks") / "results"
    if here.is_dir():
        return here
    root = project()
    return cache.folder() / "results" / f"{root.name or 'root'}-{hashlib.sha256(os.fsencode(root)).hexdigest()[:8]}"


def file_in(place: Path) -> Path:
    """The results file of this machine, where a folder is given; a file is itself."""
    return place if place.suffix == ".json" else place / f"{this.name(this.machine())}.json"


def prepare(file: Path) -> None:
    """Make the folder of a file. Below the user's cache it is private: libraries are loaded from there."""
    root, place = cache.folder(), file.absolute().parent
    if place.is_relative_to(root):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in reversed([place, *place.parents][: len(place.relative_to(root).parts)]):
            part.mkdir(mode=0o700, exist_ok=True)
    place.mkdir(parents=True, exist_ok=True)


def origin(op: Op[..., Any], base: Path | None) -> str:
    """Where an operator was defined, which tells namesakes of two projects apart: `opwright`, or its file. That is
    spelled from `base` if it lies below, so that a project may move."""
    home = op.home
    if home.__module__.startswith("opwright."):
        return "opwright"
    return home.__module__ if home.file is None else _spell(Path(home.file), base)


def base_of(file: Path) -> Path | None:
    """What the paths in a results file begin at: the project that the file lies in; None in the user's cache."""
    root = project()
    inside = file.resolve().is_relative_to(root.resolve())
    return root if inside and not file.resolve().is_relative_to(cache.folder().resolve()) else None


def sources(op: Op[..., Any], base: Path | None) -> dict[str, str]:
    """The files that an operator and its kernels are written in, and a hash of each."""
    found = {} if op.home.file is None else {Path(op.home.file): None}
    found |= dict.fromkeys(file for file in _kernel_files(op) if not file.is_relative_to(HEADERS))
    return {_spell(file, base): said for file in found if (said := content(file)) is not None}


def content(file: Path) -> str | None:
    """A hash of what a file holds; None where it cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError:
        return None


def fingerprint(op: Op[..., Any]) -> str:
    """A hash of all that a check depends on: definition, kernels with their sources and headers, and samples."""
    home = op.home
    kernels = [(k.name, k.device, k.domain, k.spec.function) for r in home.ladder for k in r.kernels]
    said = [content(file) for file in _kernel_files(op)]
    parts = [*home.definition, kernels, home.spec.samples, home.spec.rejects]
    found = digest(*parts)
    if found != digest(*parts):  # something in it cannot be spelled: its file speaks for it
        found = digest(None if home.file is None else content(Path(home.file)))
    return digest(found, said)


def _kernel_files(op: Op[..., Any]) -> list[Path]:
    found: dict[Path, None] = {}
    for rung in op.home.ladder:
        for kernel in rung.kernels:
            if kernel.library is not None:
                plan = kernel.library.plan()
                found |= dict.fromkeys([*plan.sources, *plan.headers])
    return list(found)


def _spell(file: Path, base: Path | None) -> str:
    file = file.resolve()
    if base is not None and file.is_relative_to(base.resolve()):
        return file.relative_to(base.resolve()).as_posix()
    return str(file)
