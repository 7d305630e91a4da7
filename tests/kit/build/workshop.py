"""A workshop for tests of the build: operators with kernels in a folder of their own, and a private cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from opwright.kit.build import cache

OPERATOR = """
import torch
import opwright as ow

@ow.op
def {name}(x: torch.Tensor, *, by: ow.Number = 2) -> torch.Tensor:
    "x times by"
    ow.require(x.dim() < 5, "x must have fewer than 5 dimensions, got {{x.shape}}")
    return x * by + 0.0

DOMAIN = ow.Domain(dtypes=(torch.float32, torch.float64), ranks={{"x": range(5)}})
{name}.kernel_file("cpu.cpp", DOMAIN, ow.Options({options}))
"""

# The kernel adds a sign by which a test can tell it from the reference.
KERNEL = """
#include <opwright/kernel.h>
{more}
Tensor {name}_cpu(const Tensor& x, double by) {{
    return compute(x, [&](auto zero) {{
        using C = decltype(zero);
        return map([by = C(by)](C v) {{ return v * by + C({sign}); }}, x);
    }});
}}
OPWRIGHT_KERNEL({name}, CPU, {name}_cpu);
"""

USE = """
import sys, torch, opwright as ow
op = getattr(ow.load({folder!r}), {name!r})
print(op(torch.ones(3), by=4).tolist())
"""


class Workshop:
    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.cache = folder / "cache"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("OPWRIGHT_")}
        # What is tested is the way around the compiler, so that may hurry.
        self.environment |= {"OPWRIGHT_CACHE_DIR": str(self.cache), "OPWRIGHT_CXXFLAGS": "-O0", "OMP_NUM_THREADS": "1"}

    def with_own_libraries(self) -> Workshop:
        """The same, with the package's own C++ as this machine has built it: it takes a minute."""
        self.environment.pop("OPWRIGHT_CXXFLAGS")  # they were built without
        for entry in (cache.folder() / "entries").iterdir():
            about = json.loads((entry / cache.ABOUT).read_text(encoding="utf-8"))
            if about["name"] in ("native", "call", "check"):
                shutil.copytree(entry, self.cache / "entries" / entry.name)
        for folder in (self.cache, self.cache / "entries"):
            folder.chmod(0o700)
        return self

    def write(
        self, name: str = "times", sign: str = "100", options: str = "", more: str = "", where: str = "ops"
    ) -> Path:
        folder = self.root / where / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "op.py").write_text(OPERATOR.format(name=name, options=options), encoding="utf-8")
        (folder / "cpu.cpp").write_text(KERNEL.format(name=name, sign=sign, more=more), encoding="utf-8")
        return folder

    def run(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run Python code in a process of its own."""
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True, text=True, check=False, env={**self.environment, **environment}, timeout=240,
        )  # fmt: skip

    def use(self, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Call the operator of a folder once: it prints [104.0, …] from the kernel, [4.0, …] from the reference."""
        return self.run(USE.format(folder=str(folder), name=folder.name), **environment)


KERNEL_RAN = "[104.0, 104.0, 104.0]"
REFERENCE_RAN = "[4.0, 4.0, 4.0]"
