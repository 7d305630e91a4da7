"""Operators of scripts reach a process of their own with all that they are made of, and nothing else of the script."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

import opwright as ow

HEAD = """
import enum, os
import torch
import opwright as ow
from torch import Tensor
"""


def run(folder: Path, text: str) -> str:
    script = folder / "script.py"
    script.write_text(HEAD + text)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


CRASHES = """
@ow.op
def dbl(x: Tensor) -> Tensor:
    return x * 2

@dbl.kernel("cpu")
def fast(x):
    if x.numel() == 0:
        import ctypes
        ctypes.string_at(0)
    return x * 2

@dbl.samples
def _(make):
    yield make(3)

if __name__ == "__main__":
    x = torch.ones(3)
    print("ran")
    report = ow.check(dbl, only=["forward"])
    print(report.failures[0].message, report.notes)
"""


def test_what_a_script_does_when_it_runs_is_done_once(tmp_path: Path) -> None:
    assert run(tmp_path, CRASHES).splitlines() == ["ran", "it crashed with SIGSEGV []"]


CHANGED = """
FACTORS = []
for i in range(1, 4):
    FACTORS.append(float(i))
TABLE = {}
TABLE["k"] = 3.0
LOG = []

@ow.op
def poly(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for c in FACTORS:
        out = out * x + c
    return out

@poly.kernel("cpu", ow.Domain(dtypes=(torch.float32, torch.float64)))
def right(x):
    return (x + 2) * x + 3

@poly.samples
def _(make):
    yield make(3)

@ow.op
def look(x: Tensor, *, key: str = "k") -> Tensor:
    return x * TABLE[key]

@look.kernel("cpu")
def wrong(x, *, key="k"):
    return x * 1000

@look.samples
def _(make):
    yield make(3)

class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2

@ow.op
def flipped(x: Tensor, *, side: Side = Side.LEFT) -> Tensor:
    return x * 1 if side is Side.LEFT else x.flip(0)

@flipped.samples
def _(make):
    yield make(3)

LOG.append(os.getpid())
print("here")
print(ow.check(poly, only=["forward"]).passed)
print(ow.check(look, only=["forward"]).failures[0].message[:19])
print(ow.check(flipped, only=["compile"]))
"""


def test_values_that_a_script_builds_up_and_its_classes_arrive(tmp_path: Path) -> None:
    here, poly, look, *flipped = run(tmp_path, CHANGED).splitlines()
    assert (here, poly, look) == ("here", "True", "the result is wrong")
    assert flipped[-1].startswith("every property held: 2 cases")


def test_an_operator_that_cannot_travel_is_checked_here_and_the_report_says_so() -> None:
    @ow.op
    def homebound(x: Tensor) -> Tensor:
        return x * 2

    @homebound.samples
    def _(make: ow.Maker) -> Iterator[Tensor]:
        yield make(3)

    report = ow.check(homebound, only=["forward"])
    (note,) = report.notes
    assert note.startswith("homebound: it was checked in this process, which a crash would end: ")
    assert note in str(report)
