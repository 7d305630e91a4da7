"""The CUDA side of the toolchain: nvcc, the driver, the GPUs, and which of them fit together."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from opwright.kit.build import program
from opwright.kit.build.trouble import BuildError, Unavailable

WITHOUT_GPU = ("8.0", "9.0", "10.0+PTX")
"""What is built for where there is no GPU to ask and nobody said; newer ones compile the PTX when they load it."""

Version = tuple[int, int]


@dataclass(frozen=True)
class Nvcc:
    """CUDA's compiler: how to call it, where its toolkit lies, and what tells it from any other."""

    command: str
    home: Path
    identity: str

    @property
    def release(self) -> Version:
        """The CUDA version it belongs to."""
        return _release(self.command)

    @property
    def libraries(self) -> list[Path]:
        """Where its libraries may lie."""
        places = [self.home / "lib64", self.home / "targets" / "x86_64-linux" / "lib", self.home / "lib"]
        return [p for p in places if p.is_dir()]


def nvcc() -> Nvcc:
    """The compiler named by NVCC or in CUDA_HOME, else one from PATH, the usual places or Python's packages.

    Of those that nobody named, the first that the driver can run the code of.
    """
    return _choose(*(os.environ.get(name, "") for name in ("NVCC", "CUDA_HOME", "CUDA_PATH", "PATH")))


@lru_cache
def _choose(named: str, home: str, path: str, search: str) -> Nvcc:
    if named:
        found = shutil.which(named, path=search)
        if found is None:
            raise Unavailable(f"there is no compiler {named!r}, which NVCC names; set NVCC to one that is there")
        return _identify(found)
    for folder in filter(None, (home, path)):
        if (Path(folder) / "bin" / "nvcc").is_file():
            return _identify(str(Path(folder) / "bin" / "nvcc"))
    found_here = list(dict.fromkeys(_search(search)))
    fitting = [c for c in found_here if _driver_runs(_release(c))]
    if not found_here:
        raise Unavailable(
            "there is no nvcc; install the CUDA toolkit (12.8 or newer), or set CUDA_HOME to the folder it is in"
        )
    return _identify((fitting or found_here)[0])


def _search(path: str) -> Iterator[str]:
    found = shutil.which("nvcc", path=path)
    if found is not None:
        yield found
    places = [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True), Path("/opt/cuda")]
    places += sorted(Path(torch.__file__).parent.parent.glob("nvidia/*"))
    for place in places:
        if (place / "bin" / "nvcc").is_file():
            yield str(place / "bin" / "nvcc")


@lru_cache
def _identify(command: str) -> Nvcc:
    real = Path(command).resolve()
    home = real.parent.parent
    if not (home / "include" / "cuda_runtime_api.h").is_file():
        # A script that calls the real one: it says where that lies.
        said = _say([command, "--dryrun", "-c", "-x", "cu", os.devnull, "-o", os.devnull])
        top = re.search(r"^#\$ TOP=(.+)$", said, re.MULTILINE)
        home = (real.parent.parent if top is None else Path(top[1])).resolve()
        if (home / "bin" / "nvcc").is_file():
            real = home / "bin" / "nvcc"
    about = real.stat()
    return Nvcc(command, home, f"{real} {about.st_size} {about.st_mtime_ns}")


@lru_cache
def _release(command: str) -> Version:
    found = re.search(r"release (\d+)\.(\d+)", _say([command, "--version"]))
    if found is None:
        raise Unavailable(f"{command} does not say its version; set NVCC to a compiler that runs")
    return int(found[1]), int(found[2])


def _say(command: list[str]) -> str:
    try:
        done = program.run(command, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


# --- the driver and the GPUs ---------------------------------------------------------------------------------------


@lru_cache
def driver() -> Version | None:
    """The newest CUDA version that the driver knows; None where there is no driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int()
        if library.cuDriverGetVersion(ctypes.byref(version)):
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def _driver_runs(release: Version) -> bool:
    """Whether the driver runs what this nvcc builds: a driver knows all older versions, and its own major one."""
    known = driver()
    return known is None or release[0] <= known[0]


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process sees."""

    name: str
    capability: Version

    def __str__(self) -> str:
        return f"{self.name} (compute capability {self.capability[0]}.{self.capability[1]})"


def gpus() -> list[Gpu]:
    """The GPUs that PyTorch sees."""
    if not torch.cuda.is_available():
        return []
    return [
        Gpu(torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i))
        for i in range(torch.cuda.device_count())
    ]


# --- architectures -------------------------------------------------------------------------------------------------


def architectures(asked: Iterable[str] = ()) -> tuple[str, ...]:
    """What to build for: OPWRIGHT_CUDA_ARCH, else what was asked for, else the GPUs present, else a wide set.

    >>> architectures(("sm_90", "80+PTX"))
    ('9.0', '8.0+PTX')
    """
    told = [a for a in re.split(r"[;,\s]+", os.environ.get("OPWRIGHT_CUDA_ARCH", "")) if a] or list(asked)
    if told and told != ["native"]:
        return tuple(dict.fromkeys(_spell(a) for a in told))
    present = sorted({gpu.capability for gpu in gpus()})
    if present:
        newest = present[-1]
        return tuple(f"{a}.{b}" + ("+PTX" if (a, b) == newest else "") for a, b in present)
    if told:
        raise Unavailable("there is no GPU here to build for, and OPWRIGHT_CUDA_ARCH is native; name one, such as 9.0")
    return WITHOUT_GPU


def _spell(arch: str) -> str:
    found = re.fullmatch(r"(?:sm_|compute_)?(\d+?)\.?(\d)([af]?)(\+PTX)?", arch, re.IGNORECASE)
    if found is None:
        raise ValueError(f"an architecture is written 9.0, 9.0a or 9.0+PTX, got {arch!r}")
    return f"{found[1]}.{found[2]}{found[3].lower()}{'+PTX' if found[4] else ''}"


def gencode(archs: Iterable[str]) -> list[str]:
    """The flags of nvcc for architectures.

    >>> gencode(["9.0+PTX"])
    ['-gencode=arch=compute_90,code=sm_90', '-gencode=arch=compute_90,code=compute_90']
    """
    flags = []
    for arch in archs:
        number = arch.removesuffix("+PTX").replace(".", "")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if arch.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


def runs_on(archs: Iterable[str], capability: Version) -> bool:
    """Whether a library with code for these architectures runs on a GPU of this compute capability.

    Machine code runs on its own major version from its minor one on; PTX on everything newer. With an `a` it runs on
    that very GPU alone, with an `f` on its family.

    >>> runs_on(["8.0"], (8, 6)), runs_on(["8.6"], (8, 0)), runs_on(["8.0"], (9, 0)), runs_on(["8.0+PTX"], (9, 0))
    (True, False, False, True)
    """
    for arch in archs:
        major, minor, kind = re.match(r"(\d+)\.(\d)([af]?)", arch).groups()  # type: ignore[union-attr]
        at = int(major), int(minor)
        if kind == "a":
            runs = at == capability
        else:
            runs = at[0] == capability[0] and at <= capability
            runs = runs or (arch.endswith("+PTX") and not kind and at <= capability)
        if runs:
            return True
    return False


def refuse_foreign_code(name: str, archs: Sequence[str]) -> None:
    """Raise when no GPU here can run a library: better than an error from its first launch."""
    here = gpus() if archs else []  # C++ that calls PyTorch runs anywhere
    if here and not any(runs_on(archs, gpu.capability) for gpu in here):
        wanted = ";".join(sorted({f"{a}.{b}" for a, b in (gpu.capability for gpu in here)}))
        raise Unavailable(
            f"{name} has code for {', '.join(archs)} and none for the {here[0]} here; "
            f"build it with `OPWRIGHT_CUDA_ARCH='{wanted}' opwright build --device cuda`"
        )


def compare_versions(stable: bool, release: Version | None = None) -> str | None:
    """What to know of nvcc and torch when they disagree on the CUDA version; raises when nothing can be built."""
    found = release or nvcc().release
    mine, known = f"{found[0]}.{found[1]}", driver()
    if not _driver_runs(found) and known is not None:
        raise Unavailable(
            f"nvcc is CUDA {mine} and the driver knows CUDA {known[0]}.{known[1]}, which does not run what it builds; "
            f"install a CUDA {known[0]} toolkit and set CUDA_HOME to it, or a newer driver"
        )
    theirs = torch.version.cuda
    if theirs is None or theirs == mine:
        return None
    same = theirs.partition(".")[0] == str(found[0])
    if stable:
        return (
            f"nvcc is CUDA {mine}, torch is CUDA {theirs}: this works, since a kernel brings its own CUDA runtime"
            + ("" if same else " and shares nothing else with torch's")
        )
    if not same:
        raise BuildError(
            f"nvcc is CUDA {mine}, torch is CUDA {theirs}: torch's own C++ (abi='aten') needs the same major version; "
            f"install a CUDA {theirs.partition('.')[0]} toolkit and set CUDA_HOME to it, or leave abi='stable'"
        )
    return f"nvcc is CUDA {mine}, torch is CUDA {theirs}: this works, minor versions are compatible"


@lru_cache
def say_versions(stable: bool) -> None:
    """Say once what there is to know of the versions."""
    note = compare_versions(stable)
    if note is not None:
        print(f"opwright: {note}", file=sys.stderr, flush=True)
