"""Proves a wheel before it leaves: installed where there is another torch and no compiler, its libraries must load and
its operators pass their check."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opwright.kit.ship.read import Wheel

NEEDED = ("typer", "rich", "numpy")
"""What an environment needs beside torch for the check."""


class NotProved(Exception):
    """A wheel could not be tried, and why."""


@dataclass(frozen=True)
class Proof:
    """What a wheel did in one environment."""

    found: dict[str, Any]

    @property
    def holds(self) -> bool:
        """Whether every library was used, and nothing failed."""
        return not self.found["failures"] and not self.found["unready"]

    def __str__(self) -> str:
        compiler = "with no compiler" if self.found["compiler"] is None else f"with {self.found['compiler']}"
        where = f"torch {self.found['torch']}, Python {self.found['python']}, {self.found['device']}, {compiler}"
        lines = [f"{where}: {self.found['said']}; gradients {self.found['gradients']}"]
        lines += [f"  left to its source, and not proved: {line}" for line in self.found["left"]]
        lines += [f"  not used: {line}" for line in self.found["unready"]]
        return "\n".join([*lines, *(f"  FAILED {line}" for line in self.found["failures"])])


def prove(
    wheel: Path, where: str, *, device: str = "cpu", keep: Path | None = None, say: Callable[[str], None]
) -> Proof:
    """Install a wheel where there is another torch, and check its operators there.

    Args:
        wheel: the wheel.
        where: `torch==2.10.0`, for which an environment is made, or the path of an interpreter that has its torch.
        device: the device to check on.
        keep: a folder in which environments that were made are kept; by default they go.
        say: told what is going on: an environment may take minutes.
    """
    about = Wheel.read(wheel)
    with _folder(keep) as root:
        base = _interpreter(where, root, say)
        place = Path(tempfile.mkdtemp(prefix="proof.", dir=root))
        python = _install(wheel, about, base, place)
        say(f"checking {', '.join(about.packages)} under {where} …")
        return Proof(_run(python, about.packages, device, place))


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="opwright-proof-") as scratch:
        yield (keep or Path(scratch)).resolve()


def _interpreter(where: str, root: Path, say: Callable[[str], None]) -> Path:
    """An interpreter that has the torch in question."""
    found = re.fullmatch(r"torch==(\d+\.\d+\.\d+\S*)", where)
    if found is None:
        python = Path(where).expanduser()
        if "==" in where or not python.is_file():
            raise ValueError(
                f"prove by an exact version, such as torch==2.10.0, or by an interpreter's path, got {where!r}"
            )
        return python.absolute()
    place = root / f"torch-{found[1]}-{sys.implementation.cache_tag}"
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        say(f"making an environment with {where}: some gigabytes, so it takes minutes")
        _call([sys.executable, "-m", "venv", str(place)])
        _call([str(python), "-m", "pip", "install", "--quiet", where, *NEEDED])
        (place / "ready").touch()
    return python


def _install(wheel: Path, about: Wheel, base: Path, place: Path) -> Path:
    """A fresh environment with the wheel, which sees what the other has; its interpreter."""
    _call([str(base), "-m", "venv", "--without-pip", str(place / "env")])
    python = place / "env" / "bin" / "python"
    packages = Path(_ask(python, "import sysconfig; print(sysconfig.get_paths()['purelib'])"))
    seen = [_ask(base, "import sysconfig; print(sysconfig.get_paths()['purelib'])")]
    seen += [_ask(base, "import torch, pathlib; print(pathlib.Path(torch.__file__).parent.parent)")]
    if about.packages != ("opwright",):  # which the package needs, and which is proved by itself
        seen.append(str(Path(__file__).resolve().parents[3]))
    about.unpack(wheel, packages)
    # A line in such a file is put after the environment's own folder, and what is there as editable is not followed.
    (packages / "beside.pth").write_text("\n".join(dict.fromkeys(seen)) + "\n", encoding="utf-8")
    return python


def _run(python: Path, packages: tuple[str, ...], device: str, place: Path) -> dict[str, Any]:
    home = place / "home"
    home.mkdir(mode=0o700)
    kept = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "LANG", "LC_ALL", "TMPDIR", "OMP_NUM_THREADS")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    # The folder of the interpreter alone: no compiler is found.
    environment |= {"PATH": str(python.parent), "HOME": str(home), "OPWRIGHT_CACHE_DIR": str(home / "cache")}
    command = [str(python), "-m", "opwright.kit.ship.proof", device, *packages]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise NotProved(f"{', '.join(packages)} cannot be checked under {python}:\n{said}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-4:])
        raise NotProved(f"`{' '.join(command)}` ended with {done.returncode}:\n{said}")


def _ask(python: Path, code: str) -> str:
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise NotProved(f"{python} has no torch that works: {said[0]}")
    return done.stdout.strip().splitlines()[-1]
