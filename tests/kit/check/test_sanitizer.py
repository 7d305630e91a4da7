"""How compute-sanitizer is run. What it finds is tested on a GPU, in tests/cuda."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import torch

import opwright as ow
from opwright.kit.check.cases import Case, Subject
from opwright.kit.check.properties import sanitizer
from opwright.kit.check.report import Finding

TOOL = f"""#!{sys.executable}
import os, pathlib, subprocess, sys
under = subprocess.Popen(["sleep", "600"])
pathlib.Path(__file__).with_name(sys.argv[2]).write_text(f"{{os.getpid()}} {{under.pid}}")
if sys.argv[2] == "memcheck":
    print("========= Invalid __global__ write of size 4 bytes")
    print("=========     at broken(float *)+0x70")
    under.kill()
else:
    under.wait()
"""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def pids(folder: Path) -> list[int]:
    """Of all tools and the programs under them, once all have started."""
    files = [folder / tool for tool in sanitizer.TOOLS]
    until = time.monotonic() + 30
    while not all(f.is_file() and len(f.read_text().split()) == 2 for f in files) and time.monotonic() < until:
        time.sleep(0.01)
    return [int(pid) for f in files for pid in f.read_text().split()]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for compute-sanitizer: memcheck has a finding, the others hang, as the program under each does."""
    written = tmp_path / "compute-sanitizer"
    written.write_text(TOOL)
    written.chmod(0o755)
    monkeypatch.setattr(sanitizer, "program", lambda: str(written))
    return tmp_path


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="it looks for processes in /proc")
def test_no_program_is_left_behind(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(ow.cube, "cpu", 0)
    cases = sanitizer.cases(subject)
    with pytest.raises(Finding, match=r"^memcheck: Invalid __global__ write of size 4 bytes at broken"):
        sanitizer.check(subject, next(cases))
    started = pids(tool)
    assert sum(alive(pid) for pid in started) == 6
    monkeypatch.setattr(sanitizer, "PATIENCE", 0.1)
    with pytest.raises(Finding, match=r"^racecheck did not end within 0.1 s$"):
        sanitizer.check(subject, next(cases))
    cases.close()  # type: ignore[attr-defined]
    until = time.monotonic() + 10
    while any(map(alive, started)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not [pid for pid in started if alive(pid)]


PASSES_ON = f"""#!{sys.executable}
import os, sys
print("========= COMPUTE-SANITIZER", flush=True)
os.execv(sys.executable, sys.argv[sys.argv.index(sys.executable):])
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="what it says without a GPU")
def test_the_program_under_a_tool_runs_the_cases_and_its_error_is_told(tool: Path) -> None:
    (tool / "compute-sanitizer").write_text(PASSES_ON)
    with pytest.raises(
        Finding, match=r"^initcheck: the program under it ended early and said: \w+Error: .*(CUDA|NVIDIA)"
    ):
        sanitizer.check(Subject(ow.cube, "cpu", 0), Case(0, torch.float32, extra="initcheck"))


def test_what_compute_sanitizer_says_of_pytorchs_own_kernels_is_left_out() -> None:
    said = """
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void at::native::vectorized_elementwise_kernel<(int)4>(int)+0x90
=========     by thread (0,0,0) in block (0,0,0)
=========
========= Error: Race reported between Read access at reverse(const float *, float *, long)+0x1a0
=========     and Write access at reverse(const float *, float *, long)+0x150 [992 hazards]
=========
========= Invalid __global__ write of size 4 bytes
=========     at write(float *)+0x70
=========     by thread (5,0,0) in block (0,0,0)
=========     Access to 0x7f is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cudaLaunchKernel in launch.cu:5 [0x1] in libcudart.so
=========         Host Frame: c10::Dispatcher::callBoxed(c10::OperatorHandle const&) [0x2] in libtorch_cpu.so
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
    first, second = sanitizer.errors(said)
    assert first.startswith("Error: Race reported between Read access at reverse(")
    assert second == "Invalid __global__ write of size 4 bytes at write(float *)+0x70"
    assert sanitizer.errors("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors") == []
    assert sanitizer._last_words(said + "CUDA out of memory\n========= ERROR SUMMARY: 0 errors") == "CUDA out of memory"
    assert sanitizer._last_words("") == "nothing"
