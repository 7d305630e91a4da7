"""The files of a release: source archive and wheel, and a fresh environment that runs what is in them.

Nothing is downloaded: the build uses the setuptools at hand, the environment the torch at hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
TRIAL = """
import sys, torch, opwright as ow
x = torch.arange(4.0)
assert torch.equal(ow.cube(x), x**3)
x.requires_grad_()
ow.cube(x).sum().backward()
assert torch.equal(x.grad, 3 * x.detach() ** 2)
print(ow.__version__, ow.__file__, ow.explain(ow.cube, x).runs, sep="\\n")
"""


class Broken(Exception):
    """A step of the build that failed: what, and what to do."""

    def __init__(self, what: str, do: str) -> None:
        super().__init__(what)
        self.what, self.do = what, do


def run(*command: str | Path, cwd: Path | None = None, do: str) -> str:
    """What a command prints; Broken, with its last lines, when it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise Broken(f"{' '.join(map(str, command[:4]))} … failed:\n{said}", do)
    return done.stdout


def build(root: Path, to: Path) -> tuple[Path, Path]:
    """Build the archive of the sources from what is committed, and the wheel from that archive."""
    to.mkdir(parents=True, exist_ok=True)
    for old in [*to.glob("*.tar.gz"), *to.glob("*.whl")]:
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="opwright-release-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        run("git", "archive", "--output", f"{folder}/tree.tar", "HEAD", cwd=root, do="commit what you release")
        _unpack(Path(folder) / "tree.tar", tree)
        run(sys.executable, "-c", SDIST, to.resolve(), cwd=tree, do="pip install 'setuptools>=77'")
        (sdist,) = to.glob("*.tar.gz")
        _unpack(sdist, Path(folder) / "unpacked")
        (source,) = (Path(folder) / "unpacked").iterdir()
        wheel = (sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--quiet")
        run(*wheel, "--wheel-dir", to.resolve(), source, do="pip install 'setuptools>=77' pip, and see its message")
    (made,) = to.glob("*.whl")
    return sdist, made


def _unpack(archive: Path, to: Path) -> None:
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(to, filter="data")
        else:
            tar.extractall(to)


def names(wheel: Path) -> list[str]:
    """The files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def left_out(tracked: list[str], packed: list[str]) -> list[str]:
    """The files of the package that a wheel does not carry.

    >>> left_out(["src/opwright/op.py", "src/opwright/ops/axpby/cpu.cpp", "tests/test_op.py"], ["opwright/op.py"])
    ['src/opwright/ops/axpby/cpu.cpp']
    """
    return [f for f in tracked if f.startswith("src/opwright/") and f.removeprefix("src/") not in packed]


def prove(wheel: Path) -> str:
    """Install a wheel into an environment of its own, and call an operator there from another folder."""
    with tempfile.TemporaryDirectory(prefix="opwright-release-") as folder:
        home = Path(folder) / "environment"
        run(sys.executable, "-m", "venv", "--without-pip", home, do="install Python's venv module")
        python = home / "bin" / "python"
        pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
        run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel.resolve(), do="pip install -U pip")
        (packages,) = home.glob("lib/python*/site-packages")
        # Behind its own packages, so that an opwright there is not the one tried; .pth files there are not read.
        lent = "\n".join(dict.fromkeys(sysconfig.get_path(p) for p in ("purelib", "platlib")))
        (packages / "lent.pth").write_text(f"{lent}\n", encoding="utf-8")
        said = run(python, "-c", TRIAL, cwd=Path(folder), do=f"unpack {wheel.name} and see what it lacks")
        version, place, runs = said.strip().splitlines()[-3:]
        if not Path(place).resolve().is_relative_to(home.resolve()):
            raise Broken(f"the environment imports opwright from {place}", "deactivate the environment at hand")
        return f"opwright {version} runs there: {runs}"
