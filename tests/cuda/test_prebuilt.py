"""A library that was built elsewhere runs here, without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from tests.cuda import needs_gpu

pytestmark = needs_gpu
USE = """
import torch, opwright as ow
x = torch.ones(3, device="cuda")
print(ow.cube(x + 1).tolist(), ow.explain(ow.cube, x).runs)
from opwright.kit.build.library import libraries
print([library.key for library in libraries() if library.file.name == "cuda.cu" and library.key])
"""


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_prebuilt_library_needs_no_compiler_and_no_cache(tmp_path: Path) -> None:
    major, minor = torch.cuda.get_device_capability()
    folder = tmp_path / "made"
    run("-m", "opwright", "build", "cube", "--device", "cuda", "--arch", f"{major}.{minor}", "--to", str(folder))
    cache = {"OPWRIGHT_CACHE_DIR": str(tmp_path / "empty"), "OPWRIGHT_BUILD": "0", "PATH": "/nowhere", "CUDA_HOME": ""}
    said = run("-c", USE, OPWRIGHT_PREBUILT=str(folder), **cache)
    assert "[8.0, 8.0, 8.0] cuda.cu" in said
    said = run("-c", USE, **cache)
    assert "the reference runs, since" in said


def test_a_prebuilt_library_for_other_gpus_is_left_alone(tmp_path: Path) -> None:
    other = "8.0" if torch.cuda.get_device_capability()[0] != 8 else "9.0"
    folder = tmp_path / "made"
    run("-c", f"""
import os
os.environ["OPWRIGHT_CUDA_ARCH"] = {other!r}
import opwright as ow
from pathlib import Path
from opwright.kit.build import prebuilt
library = ow.cube.kernels[1].library
plan = library.plan()
prebuilt.write(plan, library.find(plan), Path({str(folder)!r}))
""")  # fmt: skip
    said = run("-c", USE, OPWRIGHT_PREBUILT=str(folder))
    assert "[8.0, 8.0, 8.0] cuda.cu" in said  # built for this GPU, since what was made does not run on it
