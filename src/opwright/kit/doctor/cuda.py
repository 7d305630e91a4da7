"""The GPU's side of the diagnosis: driver, toolkit, torch, GPUs, and what follows from them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import torch

from opwright.kit.build import cache, cuda, fatbin, shipped
from opwright.kit.build.trouble import BuildError, Unavailable
from opwright.kit.doctor.finding import Finding

OLDEST = (7, 5)
"""The oldest GPUs that kernels are written for: the oldest that CUDA 13 knows."""


def examine() -> list[Finding]:
    """Look at everything that CUDA kernels need."""
    return [_driver(), _nvcc(), _versions(), _gpus(), _outlook()]


def _driver() -> Finding:
    known = cuda.driver()
    if known is None:
        return Finding("NVIDIA driver", "missing", "none", "operators run on the CPU; a GPU needs NVIDIA's driver")
    try:
        module = re.search(r"\d+\.\d+[.\d]*", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        module = None
    return Finding("NVIDIA driver", "ok", (f"{module[0]}, " if module else "") + f"CUDA {known[0]}.{known[1]}")


def _nvcc() -> Finding:
    try:
        found = cuda.nvcc()
        release = ".".join(map(str, found.release))
    except Unavailable as e:
        return Finding("nvcc", "missing", "none found", f"CUDA kernels cannot be built here: {e}")
    if found.release < (12, 0):
        return Finding("nvcc", "broken", f"CUDA {release}, {found.command}", "CUDA 12.0 or newer is needed")
    if not (found.home / "include" / "cuda_runtime_api.h").is_file():
        fix = "install the whole toolkit, or set CUDA_HOME to the folder that has include and lib64"
        return Finding("nvcc", "broken", f"{found.command}, without its headers in {found.home}", fix)
    return Finding("nvcc", "ok", f"CUDA {release}, {found.command}")


def _versions() -> Finding:
    """Whether nvcc, torch and the driver fit together."""
    name = "CUDA versions"
    try:
        note = cuda.compare_versions(stable=True)
    except (Unavailable, BuildError) as e:
        if _nvcc().verdict == "missing":
            return Finding(name, "missing", "no nvcc to compare", "as for nvcc")
        found, _, fix = str(e).partition("; ")
        return Finding(name, "broken", found, fix)
    theirs = torch.version.cuda
    if theirs is None:
        return Finding(name, "ok", "torch is built without CUDA; what nvcc builds here runs where torch has it")
    return Finding(name, "ok", note or f"nvcc and torch are both CUDA {theirs}")


def _gpus() -> Finding:
    if not torch.cuda.is_available():
        return Finding("GPU", "missing", _why_no_gpu(), "operators run on the CPU")
    here = cuda.gpus()
    found = ", ".join(map(str, here))
    old = [gpu for gpu in here if gpu.capability < OLDEST]
    if old:
        return Finding("GPU", "broken", found, f"CUDA kernels need compute capability 7.5 or newer; hide {old[0].name}")
    return Finding("GPU", "ok", found)


def _why_no_gpu() -> str:
    if torch.version.cuda is None:
        return "torch is built without CUDA" + ("" if cuda.driver() is None else ", though there is a driver")
    known, wanted = cuda.driver(), torch.version.cuda.partition(".")[0]
    if known is None:
        return "there is no driver"
    if known[0] < int(wanted):
        return f"torch is CUDA {torch.version.cuda}, the driver knows CUDA {known[0]}.{known[1]} only"
    return "torch sees the driver but no GPU (is CUDA_VISIBLE_DEVICES empty?)"


def _outlook() -> Finding:
    """What will happen to CUDA kernels here."""
    name = "CUDA kernels"
    try:
        cuda.nvcc()
        cuda.compare_versions(stable=True)
        archs = cuda.architectures()
    except (Unavailable, BuildError, ValueError) as e:
        found = "not built here" + ("; prebuilt ones run" if torch.cuda.is_available() else "")
        return Finding(name, "missing", found, str(e))
    listed = ", ".join(archs)
    if not torch.cuda.is_available():
        fix = "opwright build --device cuda --arch 9.0 --to FOLDER, and OPWRIGHT_PREBUILT=FOLDER where the GPU is"
        return Finding(name, "missing", f"can be built for {listed}, cannot run here", fix)
    try:
        cuda.refuse_foreign_code("what OPWRIGHT_CUDA_ARCH asks for", archs)
    except Unavailable as e:
        return Finding(name, "broken", f"built for {listed}", str(e))
    return Finding(name, "ok", f"built for {listed} and run here")


def examine_code(file: Path) -> Finding | None:
    """Whether the GPUs here can run a built library; None when it has no code for any."""
    archs = fatbin.code_in(file)
    if not archs:
        return None
    listed = ", ".join(archs)
    try:
        cuda.refuse_foreign_code(file.name, archs)
    except Unavailable as e:
        return Finding("GPU code", "broken", f"for {listed}", str(e))
    built, known = _built_with(file), cuda.driver()
    by = "" if built is None else f", built with CUDA {built[0]}.{built[1]}"
    if built is not None and known is not None and built[0] > known[0]:
        fix = f"install a newer driver, or build it with a CUDA {known[0]} toolkit (CUDA_HOME)"
        return Finding("GPU code", "broken", f"for {listed}{by}; the driver knows CUDA {known[0]}.{known[1]}", fix)
    where = "runs on the GPU here" if torch.cuda.is_available() else "there is no GPU here to run it on"
    return Finding("GPU code", "ok", f"for {listed}{by}; {where}")


def _built_with(file: Path) -> tuple[int, int] | None:
    """The CUDA version that built a library, as the cache and a package's manifest have it; None where neither does."""
    for beside in (cache.ABOUT, shipped.MANIFEST):
        try:
            about = json.loads((file.parent / beside).read_text(encoding="utf-8"))
            rows = [row for row in about.get("libraries", [about]) if row.get("file", file.name) == file.name]
            return (int(rows[0]["cuda"][0]), int(rows[0]["cuda"][1]))
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return None


_TROUBLES = (
    (
        r"no kernel image is available|has no code for (the|GPU)",
        "the library has no code for this GPU: build it with OPWRIGHT_CUDA_ARCH set to the GPU's compute capability",
    ),
    (
        r"illegal memory access|misaligned address|illegal instruction|unspecified launch failure",
        "a kernel that ran earlier went wrong; run again with OPWRIGHT_CUDA_SYNC=1 to learn which operator's, then "
        "under `compute-sanitizer --tool memcheck` to learn which line",
    ),
    (
        r"driver version is insufficient|PTX was compiled with an unsupported toolchain",
        "the driver is older than the toolkit that built the library: update it, or build with an older toolkit "
        "(CUDA_HOME)",
    ),
    (r"too many resources requested", "the block is too large for the registers it needs: launch fewer threads"),
    (r"invalid configuration argument", "the grid, the block or its shared memory is larger than the GPU allows"),
    (r"device-side assert", "a kernel's own check failed; run again with OPWRIGHT_CUDA_SYNC=1 to learn which"),
    (
        r"out of memory",
        "the GPU's memory is full: smaller inputs, or free what other processes hold (nvidia-smi shows them)",
    ),
    (
        r"capturing|cudaErrorStreamCapture",
        "something in a graph capture waits for the GPU or allocates outside PyTorch; kernels must do neither",
    ),
    (
        r"unsupported GNU version|unsupported clang version",
        "nvcc does not know this C++ compiler: set CXX to an older one (g++-12), or install a newer toolkit",
    ),
    (
        r"Unsupported gpu architecture",
        "this nvcc does not know that GPU: ask for another --arch, or update the toolkit",
    ),
)


def _missing_symbol(mangled: str) -> str:
    """What to do about a symbol that is not found when a library is loaded or linked."""
    name = mangled
    if shutil.which("c++filt"):
        name = subprocess.run(["c++filt", "--", mangled], capture_output=True, text=True, check=False).stdout.strip()
    if re.search(r"\b(at|c10|torch|caffe2|aoti\w*)\b|^(aoti_)?torch_", name or mangled):
        return (
            f"{name or mangled} is PyTorch's, and this torch has it no more or not yet: the library was built for "
            f'another one. Build it again with this torch; kernels of the stable ABI (without abi="aten") serve all'
        )
    return (
        f"{name or mangled} is in none of the library's sources: name the file that has it in ow.Options(sources=…), "
        f"or the library in ow.Options(ldflags=…)"
    )


def explain_error(said: str) -> Finding:
    """What an error message of the loader or of CUDA means, and what to do.

    >>> explain_error("CUDA error: an illegal memory access was encountered").fix.partition(";")[0]
    'a kernel that ran earlier went wrong'
    """
    symbol = re.search(r"undefined symbol: *(\w+)|undefined reference to [`']([^']+)'", said)
    if symbol is not None:
        return Finding("error", "broken", said, _missing_symbol(symbol[1] or symbol[2]))
    for pattern, fix in _TROUBLES:
        if re.search(pattern, said, re.IGNORECASE):
            return Finding("error", "broken", said, fix)
    return Finding(
        "error",
        "missing",
        said,
        "not one that is known here; of CUDA's, OPWRIGHT_CUDA_SYNC=1 tells which operator it is of",
    )
