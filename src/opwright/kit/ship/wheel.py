"""Makes a wheel of a project, or of a bare folder of operators."""

from __future__ import annotations

import contextlib
import importlib
import json
import keyword
import os
import re
import shutil
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from opwright.kit import packages
from opwright.kit.build import shipped
from opwright.kit.scaffold import TEMPLATE

Say = Callable[[str], None]


class NoWheel(Exception):
    """A wheel could not be made, and why."""


def make(folder: Path, to: Path, wishes: dict[str, Any], *, name: str | None, version: str, say: Say) -> Path:
    """Make a wheel of a folder with a pyproject.toml, or of one with operators; the file.

    Args:
        folder: the project, or the folder.
        to: where the wheel goes.
        wishes: what is wanted beyond the project's [tool.opwright].
        name: what a bare folder's package is called; its own name where None.
        version: what a bare folder's package gets as its version.
        say: told what is going on.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    to.mkdir(parents=True, exist_ok=True)
    for above in (folder.parent, folder.parent.parent):
        if not (folder / "pyproject.toml").is_file() and (above / "pyproject.toml").is_file():
            say(f"{folder} lies in the project {above}, whose name and version the wheel does not get; "
                f"`opwright wheel {above}` gives it them")  # fmt: skip
            break
    with _project(folder, name, version) as project:
        if _hook().read_wishes(project / "pyproject.toml") is None:
            raise ValueError(
                f"{project / 'pyproject.toml'} has no table [tool.opwright]; add one, which may be empty, so that the "
                f"kernels go into the wheel"
            )
        return _build(project, to.resolve(), wishes, say)


def _hook() -> Any:
    """What setuptools calls; not imported before it is needed, since it needs setuptools."""
    try:
        return importlib.import_module("_opwright_build")
    except ModuleNotFoundError as e:
        raise NoWheel(f"{e}; wheels are made by setuptools: pip install 'setuptools>=77'") from None


@contextlib.contextmanager
def _project(folder: Path, name: str | None, version: str) -> Iterator[Path]:
    """The folder itself where it is a project, else a project made of it for the while."""
    if (folder / "pyproject.toml").is_file():
        if name is not None:
            raise ValueError(f"{folder} is a project, and its pyproject.toml names it; leave --name out")
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="opwright-wheel-") as scratch:
        project = Path(scratch)
        _write_project(folder, project, name or re.sub(r"\W", "_", folder.name), version)
        yield project


def _write_project(folder: Path, project: Path, name: str, version: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name) or name in sys.stdlib_module_names or name == "opwright":
        raise ValueError(f"{name!r} cannot name a package; say --name with letters, digits and _")
    if shipped.is_anothers(name) and not (folder.name == name and (folder / "__init__.py").is_file()):
        raise ValueError(f"{name!r} is another package's name; say --name with one of your own")
    inside = project / "src" / name

    def left_out(place: str, names: list[str]) -> set[str]:
        made = [n for n in ("build", "dist", "_opwright") if not (Path(place) / n / packages.FILE).is_file()]
        return {n for n in names if n in made or n == "__pycache__" or n.startswith(".") or n.endswith(".egg-info")}

    if (folder / packages.FILE).is_file():
        shutil.copytree(folder, inside / folder.name, ignore=left_out)
    else:
        shutil.copytree(folder, inside, ignore=left_out)
    if not (inside / "__init__.py").exists():
        found = sorted(file.parent.name for file in inside.glob(f"*/{packages.FILE}"))
        strange = next((each for each in found if not each.isidentifier()), None)
        if strange is not None:
            raise ValueError(f"the folder {strange!r} cannot be imported; take letters, digits and _ for its name")
        if not found:
            raise FileNotFoundError(f"{folder} holds no operator: neither an {packages.FILE} nor folders with one")
        lines = [f"from .{each}.op import *  # noqa: F403" for each in found]
        (inside / "__init__.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = {"package": name, "version": version}
    text = string.Template((TEMPLATE / "package" / "pyproject.toml").read_text(encoding="utf-8")).substitute(words)
    (project / "pyproject.toml").write_text(text, encoding="utf-8")


def _build(project: Path, to: Path, wishes: dict[str, Any], say: Say) -> Path:
    """Call the project's own build system in a process, without an environment of its own: torch is here."""
    shutil.rmtree(project / "build" / "lib", ignore_errors=True)  # setuptools never takes away what is there of old
    code = "import sys, importlib; print('\\n' + importlib.import_module(sys.argv[1]).build_wheel(sys.argv[2]))"
    environment = {**os.environ, "OPWRIGHT_WHEEL": json.dumps(wishes)}
    command = [sys.executable, "-c", code, _backend(project), str(to)]
    told: list[str] = []
    process = subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            told.append(line.rstrip())
            if line.startswith("opwright: "):
                say(line.rstrip().removeprefix("opwright: "))
    if process.returncode:
        progress = [i for i, line in enumerate(told) if line.startswith(("opwright: building", "opwright: built"))]
        said = [line for line in told[progress[-1] + 1 if progress else 0 :] if line.strip()]
        raise NoWheel("\n".join(said[-30:]) or "the build ended without a word")
    return to / [line for line in told if line.endswith(".whl")][-1].strip()


def _backend(project: Path) -> str:
    parsed = _hook().parser().loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    backend = parsed.get("build-system", {}).get("build-backend", "setuptools.build_meta")
    if not backend.startswith("setuptools"):
        raise ValueError(
            f"the project is built by {backend}, which opwright has no hook for; `opwright wheel --libraries PACKAGE` "
            f"puts the libraries into a package's folder, for your build system to take along"
        )
    return str(backend).partition(":")[0]
