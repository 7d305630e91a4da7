"""On a Python without the global lock calls go through Python: the short way borrows references."""

from __future__ import annotations

import subprocess
import sys
import sysconfig

import pytest

from opwright.kit import doctor
from opwright.kit.build import own
from opwright.kit.dispatch import short

CALLS = """
from opwright.kit.build import own
from opwright.kit.dispatch import short
own.free_threaded = lambda: {free}
import threading, torch, opwright as ow
from opwright.kit.dispatch import native

@ow.op(namespace="free", opaque=True)
def every(x: torch.Tensor, items: list[torch.Tensor], by: ow.Number = 2) -> torch.Tensor:
    return x * by + sum(items)

def call():
    for _ in range(50):
        assert every(torch.ones(2), [torch.ones(2)], by=3).tolist() == [4.0, 4.0]
        assert ow.axpby(torch.ones(2), torch.ones(2), a=2).tolist() == [3.0, 3.0]
threads = [threading.Thread(target=call) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
print(short._module is None, every._short is None, ow.axpby._short is None)
"""


def said(free: bool) -> list[str]:
    command = [sys.executable, "-c", CALLS.format(free=free)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Error" not in done.stderr
    return done.stdout.split()


def test_calls_go_through_python() -> None:
    assert said(free=True) == ["True"] * 3
    if short.look() is None:
        assert said(free=False) == ["False"] * 3


def test_it_is_told_by_how_python_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    for built, free in ((1, True), (0, False), (None, False)):
        monkeypatch.setattr(sysconfig, "get_config_var", lambda name, built=built: built)
        assert own.free_threaded() is free


def test_nothing_is_built_for_it_and_doctor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "free_threaded", lambda: True)
    monkeypatch.setattr(short, "_module", None)
    assert own.call() is None
    short.build()
    assert short.look() == "it needs the global lock, which a free-threaded Python is built without"
    found = {f.what: f for f in doctor.examine()}
    assert found["Python"].verdict == "missing"
    assert found["Python"].found.endswith(", free-threaded")
    assert "untried without the global lock" in found["Python"].fix
    assert "headers" not in found["opwright's own C++"].fix
