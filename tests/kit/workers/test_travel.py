"""Operators of scripts reach a process of their own with all that they are made of, and nothing else of the script."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import Tensor

import opwright as ow

HEAD = """
import enum, os
import torch
import opwright as ow
from torch import Tensor
"""


def run(folder: Path, text: str, *arguments: str) -> str:
    script = folder / "script.py"
    script.write_text(HEAD + text)
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
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


@pytest.mark.slow
def test_values_that_a_script_builds_up_and_its_classes_arrive(tmp_path: Path) -> None:
    here, poly, look, *flipped = run(tmp_path, CHANGED).splitlines()
    assert (here, poly, look) == ("here", "True", "the result is wrong")
    assert flipped[-1].startswith("1 property holds in 2 cases")


def test_an_operator_that_cannot_travel_is_checked_here_and_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)

    @ow.op
    def homebound(x: Tensor) -> Tensor:
        return x * 2

    @homebound.samples
    def _(make: ow.Maker) -> Iterator[Tensor]:
        yield make(3)

    report = ow.check(homebound, only=["forward"])
    (note,) = report.notes
    assert note.startswith("homebound: it was checked in this process, which a crash would end: ")
    assert "pip install 'opwright[notebook]'" in note
    assert note in str(report)


NESTED = """
import sys
sys.modules.update({"cloudpickle": None} if "hidden" in sys.argv else {})
import opwright as ow
from opwright.kit.bench.results import Results
from opwright.kit.bench.run import Asked, run

def main():
    factors = [2.0, 3.0]
    class Way(enum.Enum):
        UP = 1
        DOWN = 2

    @ow.op
    def once(x: Tensor, *, way: Way = Way.UP) -> Tensor:
        return x * factors[0] if way is Way.UP else x / factors[0]

    @ow.op
    def inner(x: Tensor) -> Tensor:
        return once(x) * factors[1]

    @inner.saving("scale")
    def _(x):
        return once(x) * factors[1], torch.full_like(x, 6.0)

    @inner.gradient
    def _(grad, scale):
        return grad * scale

    @inner.kernel("cpu", ow.Domain(dtypes=(torch.float32,)))
    def fast(x):
        if CRASH and x.numel() == 0:
            import ctypes
            ctypes.string_at(0)
        return x * factors[0] * factors[1]

    @inner.backward.kernel("cpu", ow.Domain(dtypes=(torch.float32,)))
    def back(grad, scale, x, *, wanted=None):
        return grad * scale * (1.5 if CRASH else 1.0)

    @inner.samples
    def _(make):
        yield make(3)

    inner.bench("plain", sizes=(64,))(lambda make, n: make(n))
    inner.variant("itself", lambda x: inner(x))
    THEN

main()
"""


def nested(folder: Path, do: str, *, crash: bool = False, hidden: bool = False) -> str:
    return run(folder, f"CRASH = {crash}\n" + NESTED.replace("THEN", do), *(["hidden"] if hidden else []))


@pytest.fixture
def cloudpickle() -> None:
    pytest.importorskip("cloudpickle")


@pytest.mark.usefixtures("cloudpickle")
@pytest.mark.slow
def test_an_operator_inside_a_function_is_checked_in_processes_of_their_own(tmp_path: Path) -> None:
    only = ["forward", "gradients", "fake", "rejects"]
    whole = f"report = ow.check(inner, only={only}); print(report.notes, report.passed, report)"
    said = nested(tmp_path, whole)
    assert said.startswith("[] True"), said
    assert "inner_backward: " in said
    assert "inner_saving: " in said
    short = 'print(sorted({f.message[:19] for f in ow.check(inner, only=["forward"]).failures}))'
    assert nested(tmp_path, short, crash=True) == "['it crashed with SIG', 'the result is wrong']\n"


BENCH = """
    results = Results.here()
    results.machine["threads"] = 1
    run(Asked([inner], seconds=0.02, without=["compiled"], families=1), results)
    print({r["variant"]: r["status"] for r in results.rows})
"""


@pytest.mark.usefixtures("cloudpickle")
def test_an_operator_inside_a_function_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    said = nested(tmp_path, BENCH.strip())
    assert said.splitlines()[-1] == "{'eager': 'ok', 'opwright': 'ok', 'itself': 'ok'}"


def test_without_cloudpickle_an_operator_inside_a_function_says_what_it_lacks(tmp_path: Path) -> None:
    tried = """
    print(ow.check(inner, only=["forward"]).notes)
    try:
        run(Asked([inner], seconds=0.02), Results.here())
    except LookupError as e:
        print(e)
"""
    noted, raised = nested(tmp_path, tried.strip(), hidden=True).splitlines()
    for said in (noted, raised):
        assert "inner is defined inside a function, where another process cannot find it" in said
        assert "pip install 'opwright[notebook]'" in said
    assert "it was checked in this process" in noted


@pytest.mark.usefixtures("cloudpickle")
def test_what_cannot_be_pickled_stays_and_the_report_says_so() -> None:
    import threading

    lock = threading.Lock()

    @ow.op
    def locked(x: Tensor) -> Tensor:
        with lock:
            return x * 2

    @locked.samples
    def _(make: ow.Maker) -> Iterator[Tensor]:
        yield make(3)

    (note,) = ow.check(locked, only=["forward"]).notes
    assert "locked is defined inside a function, where another process cannot find it; locked cannot be pickled" in note


CELLS = """
import linecache
cells = ['''
from torch import Tensor
TABLE = {"k": 3.0}
''', '''
@ow.op
def cell(x: Tensor) -> Tensor:
    return x * TABLE["k"]

@cell.kernel("cpu", ow.Domain(dtypes=(torch.float32,)))
def wrong(x):
    return x * 1000

@cell.samples
def _(make):
    yield make(3)
''']
for i, text in enumerate(cells):  # as IPython does
    linecache.cache[f"<cell {i}>"] = (len(text), None, text.splitlines(True), f"<cell {i}>")
    exec(compile(text, f"<cell {i}>", "exec"))
report = ow.check(cell, only=["forward"])
print(report.notes, {f.message[:19] for f in report.failures})
"""


@pytest.mark.slow
@pytest.mark.usefixtures("cloudpickle")
def test_values_of_other_cells_travel(tmp_path: Path) -> None:
    assert run(tmp_path, CELLS) == "[] {'the result is wrong'}\n"


@pytest.mark.slow
@pytest.mark.usefixtures("cloudpickle")
def test_an_operator_of_a_command_line_travels() -> None:
    code = CRASHES.replace('print("ran")', "")
    done = subprocess.run([sys.executable, "-c", HEAD + code], capture_output=True, text=True, check=False)
    assert done.stdout == "it crashed with SIGSEGV []\n", done.stderr


AGAIN = """
import linecache

CELL = '''
import torch
import opwright as ow
@ow.op
def thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3
@thrice.kernel("cpu")
def _(x):
    return x * KERNEL
@thrice.samples
def _(make):
    yield make(4)
@thrice.fake
def _(x):
    return FAKE
'''

LIKE = "torch.empty_like(x * 3)"

def cell(number, kernel, fake):
    text, name = CELL.replace("KERNEL", kernel).replace("FAKE", fake), f"<cell {number}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), globals())
    return ow.check(thrice, only=["forward", "fake"])

if __name__ == "__main__":
    for number, (kernel, fake) in enumerate([("3", LIKE), ("4", LIKE), ("3", "x.new_empty(7, 9)"), ("3", LIKE)]):
        report = cell(number, kernel, fake)
        print(report.passed, sorted({f.property for f in report.failures}), report.notes)
"""


def test_a_cell_that_is_run_again_is_checked_as_it_is_now(tmp_path: Path) -> None:
    told = ["True [] []", "False ['forward'] []", "False ['fake'] []", "True [] []"]
    assert run(tmp_path, AGAIN).splitlines() == told
