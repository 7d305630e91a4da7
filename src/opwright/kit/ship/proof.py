"""What a wheel is worth in the environment that it was installed into: run there by prove.py, it prints JSON.

python -m opwright.kit.ship.proof DEVICE PACKAGE …
"""

from __future__ import annotations

import json
import platform
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from opwright.kit import load
from opwright.kit.build import cuda, toolchain
from opwright.kit.build.trouble import Unavailable
from opwright.kit.check import run
from opwright.kit.dispatch import native, registry, short
from opwright.kit.op import Op
from opwright.version import __version__


def prove(device: str, *packages: str) -> dict[str, Any]:
    """Load every library of the packages' operators, and check the operators."""
    folders = [Path(str(import_module(package).__file__)).parent.resolve() for package in packages]
    for package, folder in zip(packages, folders, strict=True):
        if package != "opwright":
            load.load(folder)
    operators = [op for op in registry.operators() if op.home is op and op.file]
    every = [op for op in operators if any(Path(str(op.file)).resolve().is_relative_to(f) for f in folders)]
    left = {op: name for op in every for name in _left_to_sources(op, device)}
    homes = [op for op in every if op not in left]
    unready = _unready(homes, device)
    start = time.perf_counter()
    report = run.run(homes, device=device)
    return {
        "package": ", ".join(packages),
        "left": list(left.values()),
        "opwright": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {' '.join(platform.libc_ver())}",
        "gpu": str(cuda.gpus()[0]) if device == "cuda" else None,
        "device": device,
        "compiler": _compiler(),
        "libraries": sum(
            1 for op in homes for rung in op.ladder for k in rung.kernels if k.library and k.device == device
        ),
        "unready": unready,
        "gradients": _where(native.available()),
        "calls": _where(short.look()),
        "operators": [op.name for op in homes],
        "said": report.summary,
        "cases": report.cases,
        "failures": [str(failure) for failure in report.failures][:20],
        "seconds": round(time.perf_counter() - start, 1),
    }


def _left_to_sources(op: Op[..., Any], device: str) -> list[str]:
    """The kernels of an operator that use the whole of torch and were not shipped."""
    kernels = [k for rung in op.ladder for k in rung.kernels if k.library is not None and k.device == device]
    return [
        f"{op.name} ({kernel.name})"
        for kernel in kernels
        if kernel.library is not None and kernel.library.options.abi == "aten" and not kernel.library.cached()
    ][:1]


def _where(why_not: str | None) -> str:
    return "in C++" if why_not is None else f"in Python ({why_not})"


def _unready(homes: list[Op[..., Any]], device: str) -> list[str]:
    """The kernels that do not run here, and why: a check of references would prove nothing."""
    found = []
    for op in homes:
        for rung in op.ladder:
            for kernel in rung.kernels:
                if kernel.library is None or kernel.device != device:
                    continue
                if kernel.library.load() is None:
                    found.append(f"{rung.name}: {kernel.library.trouble}")
                elif kernel.ready(rung) is None:
                    found.append(f"{rung.name}: its library has no kernel for it")
    return found


def _compiler() -> str | None:
    try:
        return toolchain.compiler().command[0]
    except Unavailable:
        return None


if __name__ == "__main__":
    print(json.dumps(prove(*sys.argv[1:])))
