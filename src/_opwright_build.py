"""What setuptools runs while it builds a package whose pyproject.toml has a table [tool.opwright]: the kernels of its
operators are built and go into the wheel, whose tag says where they run.

Apart from the package `opwright`, so that setuptools, which asks every installed package for its hooks, imports neither
opwright nor torch for projects that have nothing to do with them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    from setuptools.command.build_py import build_py  # type: ignore[import-untyped]
except ImportError:  # projects of other build systems ask for their wishes alone
    build_py = object
try:
    from setuptools.command.bdist_wheel import bdist_wheel  # type: ignore[import-untyped]
except ImportError:  # setuptools is older than 70.1, and other people's builds must not end for want of it
    try:
        from wheel.bdist_wheel import bdist_wheel  # type: ignore[import-not-found,import-untyped,no-redef]
    except ImportError:
        bdist_wheel = object

SOURCES = ("*.cpp", "*.cc", "*.cxx", "*.cu", "*.h", "*.hpp", "*.cuh", "*.inl")
KNOWN = ("packages", "cuda", "arch", "aten", "natives")
OF_THE_MACHINE = (
    "OPWRIGHT_CXXFLAGS", "OPWRIGHT_LDFLAGS", "OPWRIGHT_INCLUDE", "OPWRIGHT_NVCCFLAGS", "OPWRIGHT_DEBUG"
)  # fmt: skip
"""What somebody sets for builds of his own. A wheel holds what its author declares in `ow.Options`."""
ANSWER = "opwright-wheel.json"
"""The file in the build's folder that says what became of the kernels."""


def finalize(dist: Any) -> None:
    """Called by setuptools for every project that it builds where opwright is installed, before it has read the
    project's pyproject.toml: what is to be done waits until it has."""
    wishes = read_wishes(Path("pyproject.toml"))
    if wishes is None:
        return
    parse = dist.parse_config_files

    def parse_config_files(*args: Any, **kwargs: Any) -> None:
        parse(*args, **kwargs)
        if dist.get_name() != "opwright":  # whose pyproject.toml names the commands below itself
            prepare(dist, wishes)

    dist.parse_config_files = parse_config_files


def prepare(dist: Any, wishes: Mapping[str, Any]) -> None:
    """Let a project's kernels be built and go along."""
    for name, ours in (("build_py", BuildPy), ("bdist_wheel", BdistWheel)):
        theirs = dist.get_command_class(name)  # the project may have one of its own
        dist.cmdclass[name] = type(theirs.__name__, (ours, theirs), {})
    add_sources(dist)
    if wishes.get("aten") == "pinned":
        if importlib.util.find_spec("torch") is None:
            raise ValueError('[tool.opwright] aten = "pinned" needs torch where the wheel is built: install it first')
        pin(dist, importlib.metadata.version("torch"))


def read_wishes(file: Path) -> dict[str, Any] | None:
    """The table [tool.opwright] of a project; None where it has none."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError:
        return None
    if "tool.opwright" not in text:
        return None  # which spares the parser
    wishes: dict[str, Any] | None = parser().loads(text).get("tool", {}).get("opwright")
    if wishes is None:
        return None
    if not isinstance(wishes, dict):
        raise ValueError(f"{file}: [tool.opwright] is a table, got {wishes!r}")
    strange = sorted(set(wishes) - set(KNOWN))
    if strange:
        raise ValueError(f"{file}: [tool.opwright] knows {', '.join(KNOWN)}, got {', '.join(strange)}")
    for name in ("packages", "arch", "natives"):
        given = wishes.get(name, [])
        if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            raise ValueError(f"{file}: [tool.opwright] {name} must be a list of strings, got {given!r}")
    if wishes.get("aten", "sources") not in ("sources", "pinned"):
        raise ValueError(f'{file}: [tool.opwright] aten must be "sources" or "pinned", got {wishes["aten"]!r}')
    if wishes.get("cuda", "auto") not in ("auto", True, False):
        raise ValueError(f'{file}: [tool.opwright] cuda must be "auto", true or false, got {wishes["cuda"]!r}')
    return wishes


def parser() -> Any:
    """What reads TOML; before Python 3.11 somebody else's."""
    for name in ("tomllib", "tomli", "setuptools._vendor.tomli", "setuptools.extern.tomli"):
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            try:
                return importlib.import_module(name)
            except ImportError:
                continue
    raise ModuleNotFoundError("pyproject.toml cannot be read before Python 3.11 without tomli: pip install tomli")


def add_sources(dist: Any) -> None:
    """Let the kernels' sources go along: who has another GPU or another torch builds from them."""
    wanted = dist.package_data.setdefault("", [])
    wanted += [pattern for pattern in SOURCES if pattern not in wanted]


def pin(dist: Any, torch: str) -> None:
    """Tie a project to one torch, for libraries that use more of it than its stable ABI."""
    release = torch.partition("+")[0]
    dist.metadata.version = f"{str(dist.metadata.version).partition('+')[0]}+torch{release}"
    kept = [r for r in dist.install_requires or () if not re.match(r"torch(?![\w.-])", r.strip(), re.IGNORECASE)]
    dist.install_requires = dist.metadata.install_requires = [*kept, f"torch=={release}"]


class BuildPy(build_py):  # type: ignore[misc]
    """Copies the package, then lets opwright build its kernels into the copy."""

    def run(self) -> None:
        editable = getattr(self, "editable_mode", False)  # there kernels are built when they are first used
        if not editable:
            for name in dict.fromkeys(name.partition(".")[0] for name in self.distribution.packages or ()):
                shutil.rmtree(Path(self.build_lib) / name, ignore_errors=True)  # what is gone from the project
        super().run()
        if not editable:
            fill(
                Path(self.build_lib), list(self.distribution.packages or ()), read_wishes(Path("pyproject.toml")) or {}
            )

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        built = sorted(map(str, Path(self.build_lib).glob("*/_opwright/*")))
        return [*super().get_outputs(include_bytecode), *built]


class BdistWheel(bdist_wheel):  # type: ignore[misc]
    """Names the wheel after what its libraries need."""

    def get_tag(self) -> tuple[str, str, str]:
        answer = read_answer(Path(self.get_finalized_command("build_py").build_lib))
        if self.distribution.has_ext_modules() or answer is None or not answer["libraries"]:
            theirs: tuple[str, str, str] = super().get_tag()  # extensions of the project's own run with one Python
            return theirs
        return answer["python"], answer["abi"], answer["platform"]

    def write_wheelfile(self, wheelfile_base: str, *args: Any, **kwargs: Any) -> None:
        answer = read_answer(Path(self.get_finalized_command("build_py").build_lib))
        if answer is not None and answer["libraries"]:
            self.root_is_pure = False  # only now is it known
        super().write_wheelfile(wheelfile_base, *args, **kwargs)


def fill(build: Path, packages: list[str], wishes: Mapping[str, Any]) -> None:
    """Build the kernels of the packages that lie in a folder, in a process of its own: it imports them."""
    tops = list(dict.fromkeys(name.partition(".")[0] for name in wishes.get("packages") or packages))
    found = [name for name in tops if (build / name / "__init__.py").is_file()]
    answer = build.parent / f"{build.name}-{ANSWER}"
    answer.unlink(missing_ok=True)
    if not found:
        bare = [name for name in tops if (build / name).is_dir()]
        hint = f"{bare[0]} has no __init__.py, and a namespace package ships no operators" if bare else ""
        raise ValueError(
            f"[tool.opwright] finds no package among {', '.join(tops) or 'none'}; "
            + (hint or "name them in packages = […]")
        )
    if importlib.util.find_spec("torch") is None:
        print(
            "opwright: torch is not there, so no kernel is built: the wheel has their sources alone. To ship "
            "libraries, install torch, and build without isolation (`pip wheel --no-build-isolation`)",
            file=sys.stderr,
            flush=True,
        )
        return
    # Behind it the project's metadata, for packages that look up their own version.
    beside = [str(info.parent.resolve()) for info in (*Path().glob("*.egg-info"), *Path().glob("*/*.egg-info"))]
    path = os.pathsep.join(filter(None, (str(build.resolve()), os.environ.get("PYTHONPATH", ""), *beside)))
    environment = {name: value for name, value in os.environ.items() if name not in OF_THE_MACHINE}
    more = json.loads(os.environ.get("OPWRIGHT_WHEEL", "{}"))  # what `opwright wheel` was told
    wish = json.dumps({**wishes, **more, "answer": str(answer.resolve())})
    command = [sys.executable, "-m", "opwright.kit.ship.fill", wish, *(str((build / name).resolve()) for name in found)]
    environment |= {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    # Not in the project's folder: there its sources would be imported, not what goes into the wheel.
    done = subprocess.run(command, env=environment, cwd=build, check=False)
    if done.returncode:
        raise SystemExit(f"opwright: the kernels of {', '.join(found)} cannot be shipped; see above")


def read_answer(build: Path) -> dict[str, Any] | None:
    """What became of the kernels; None where none was built."""
    try:
        answer: dict[str, Any] = json.loads((build.parent / f"{build.name}-{ANSWER}").read_text(encoding="utf-8"))
    except OSError:
        return None
    return answer
