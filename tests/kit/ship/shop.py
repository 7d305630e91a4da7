"""A shop for tests of shipping: a package with an operator whose kernel can be told from its reference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

OPERATOR = """
import torch
import opwright as ow


@ow.op
def {name}(x: torch.Tensor) -> torch.Tensor:
    "x and a half"
    return x + 0.5


{name}.kernel_file("cpu.cpp", ow.Domain(dtypes=(torch.float32,)), ow.Options({options}))
"""

KERNEL = """
#include <opwright/kernel.h>
#include "sign.h"

Tensor {name}_cpu(const Tensor& x) {{
    return compute(x, [&](auto zero) {{
        using C = decltype(zero);
        return map([](C v) {{ return v + C(SIGN); }}, x);
    }});
}}
OPWRIGHT_KERNEL({name}, CPU, {name}_cpu);
"""

USE = """
import sys, warnings, torch, opwright as ow
import {package}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        print({package}.{name}(torch.zeros(2)).tolist())
for each in caught:
    print("WARNED", each.message)
print(ow.explain({package}.{name}, torch.zeros(2)))
"""


def write_package(
    root: Path, package: str = "shop", name: str = "halved", options: str = "", sign: str = "0.75"
) -> Path:
    """A package with one operator, as its author has it; its folder."""
    folder = root / package
    (folder / name).mkdir(parents=True)
    (folder / "__init__.py").write_text(f"from .{name}.op import {name} as {name}\n")
    (folder / name / "op.py").write_text(OPERATOR.format(name=name, options=options))
    (folder / name / "cpu.cpp").write_text(KERNEL.format(name=name))
    (folder / name / "sign.h").write_text(f"#define SIGN {sign}\n")
    return folder


def run(command: list[str], cwd: Path, compiler: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
    """A command in a folder; without a compiler, with one folder on PATH in which there is none."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OPWRIGHT_")}
    environment = {**kept, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **more}
    if not compiler:
        empty = cwd / "nothing"
        empty.mkdir(exist_ok=True)
        environment |= {"PATH": str(empty), "OPWRIGHT_CACHE_DIR": str(cwd / "no-cache")}
        environment.pop("CXX", None)
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=280)


def fill(folder: Path, **wishes: Any) -> subprocess.CompletedProcess[str]:
    """Put a package's libraries into it, as the build of a wheel does."""
    asked = json.dumps({"cuda": False, **wishes})
    command = [sys.executable, "-m", "opwright.kit.ship.fill", asked, str(folder)]
    return run(command, folder.parent, OPWRIGHT_CXXFLAGS="-O0", OPWRIGHT_CACHE_DIR=str(folder.parent / "cache"))


def use(folder: Path, name: str = "halved", compiler: bool = False, **more: str) -> subprocess.CompletedProcess[str]:
    """Call a package's operator twice in a process of its own."""
    program = USE.format(package=folder.name, name=name)
    return run([sys.executable, "-c", program], folder.parent, compiler, PYTHONPATH=str(folder.parent), **more)
