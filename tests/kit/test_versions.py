"""Which torch the package runs with, and what it does with one that it was never tried with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from opwright.cli import building
from opwright.kit.dispatch import native, short
from opwright.kit.dispatch.untraced import untraced
from opwright.version import NEWEST_TORCH, OLDEST_TORCH, too_old, untried

NEWER = f"{NEWEST_TORCH[0]}.{NEWEST_TORCH[1] + 1}.0"
OLDER = f"{OLDEST_TORCH[0]}.{OLDEST_TORCH[1] - 1}.1+cpu"

CALLS = """
import json, sys, warnings
import torch
torch.__version__ = sys.argv[1]
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import opwright as ow
    from opwright.kit import doctor
    from opwright.kit.dispatch import native

    @ow.op
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @ow.op(opaque=True)
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @ow.op(opaque=True)
    def thrice(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    x = torch.ones(3, requires_grad=True)
    plain(x)
    before = len(said)
    for _ in range(2):
        thrice(twice(x)).sum().backward()
    first, = torch.func.grad(lambda x: twice(x).square().sum())(x.detach()[:1])
found = {f.what: f for f in doctor.examine()}["opwright's own C++"]
print(json.dumps({
    "before": before,
    "said": [str(w.message) for w in said if w.category is RuntimeWarning],
    "grad": [*x.grad.tolist(), first.item()],
    "available": native.available(),
    "doctor": [found.verdict, found.found],
}))
"""


def calls(version: str, **environment: str) -> dict[str, Any]:
    """What a process says that calls operators under a torch of this version."""
    command = [sys.executable, "-c", CALLS, version]
    known = {name: value for name, value in os.environ.items() if name != "OPWRIGHT_NATIVE"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**known, **environment})
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_an_older_torch_is_refused_at_import() -> None:
    code = f"import torch; torch.__version__ = {OLDER!r}; import opwright"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    oldest = ".".join(map(str, OLDEST_TORCH))
    sentence = f"ImportError: opwright needs torch {oldest} or newer, got {OLDER}: pip install -U torch"
    assert done.stderr.splitlines()[-1] == sentence


def test_a_newer_torch_runs_in_python_with_one_warning_at_the_first_call() -> None:
    found = calls(NEWER)
    why = untried(NEWER)
    assert why is not None
    assert found["before"] == 0
    assert found["said"] == [f"opwright: {why}"]
    assert found["grad"] == [12.0, 12.0, 12.0, 8.0]
    assert found["available"] == why
    assert found["doctor"] == ["missing", why]
    assert "OPWRIGHT_NATIVE=1" in why


@pytest.mark.parametrize("native", ["0", "1"])
def test_whoever_has_decided_about_the_c_plus_plus_is_not_warned(native: str) -> None:
    found = calls(NEWER, OPWRIGHT_NATIVE=native)
    assert not found["said"]
    assert found["available"] != untried(NEWER)


def test_a_build_leaves_out_what_a_newer_torch_would_not_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(force: bool) -> None:
        pytest.fail("it was built")

    monkeypatch.setattr(torch, "__version__", NEWER)
    monkeypatch.delenv("OPWRIGHT_NATIVE", raising=False)
    for own in (native, short):
        monkeypatch.setattr(own, "build", fail)
    monkeypatch.setattr(building, "chosen", lambda names: [])
    building.build([])
    assert f"opwright's own C++ is left out: torch {NEWER} is newer" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["2.15.0", "2.15.3+cu130", "2.15.0a0+git1234", "2.10.0", "parrot"])
def test_versions_that_were_tried(version: str) -> None:
    assert too_old(version) is None
    assert untried(version) is None


@pytest.mark.parametrize("version", ["2.16.0", "2.16.0.dev20270101+cpu", "3.0.0", "2.100.0"])
def test_versions_that_are_newer(version: str) -> None:
    assert too_old(version) is None
    assert untried(version) is not None


@pytest.mark.parametrize("version", ["2.9.1", "1.13.0", "2.9.0+cu128"])
def test_versions_that_are_older(version: str) -> None:
    assert too_old(version) is not None


@pytest.mark.parametrize("gone", [[], ["_disable_dynamo"]], ids=["one way", "another"])
def test_a_torch_that_has_other_names_for_its_frames_will_do(monkeypatch: pytest.MonkeyPatch, gone: list[str]) -> None:
    import torch._dynamo  # which has its own references to them

    monkeypatch.delattr(torch._C._dynamo.eval_frame, "_FrameExecStrategy")
    for name in gone:
        monkeypatch.delattr(torch, name)
    function = untraced(lambda x: x + 1)
    monkeypatch.undo()
    assert function(torch.ones(1)).item() == 2
    assert torch.compile(lambda x: function(x) * 2, backend="eager")(torch.ones(1)).item() == 4


FAKES_IN_THREADS = """
import threading
import torch
from opwright.kit import private

def fakes():
    with private.fake_tensor_mode():
        torch.empty(3) * 2

for _ in range(4):
    threads = [threading.Thread(target=fakes) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
x = torch.ones(3, requires_grad=True)
(x * 2).sum().backward()
"""


def test_fakes_in_a_thread_that_has_ended_do_not_crash_a_backward() -> None:
    """In a CUDA build without a GPU they did, in torch 2.11; elsewhere there is nothing to go wrong."""
    done = subprocess.run([sys.executable, "-c", FAKES_IN_THREADS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
