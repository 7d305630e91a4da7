"""Calls, recorded and differentiated, leave nothing behind; threads do not get in each other's way."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

import opwright as ow

ROOT = Path(__file__).parent.parent.parent


def resident() -> int:
    """The process's memory in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def step(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    hidden = ow.sigmoid(ow.linear(x, weight, bias))
    out = ow.axpby(ow.cube(hidden), ow.scale(hidden, 2.0), a=0.5)
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    torch.autograd.grad(first.sum(), (x, weight))


def grown_by(steps: int) -> int:
    tensors = [t.requires_grad_() for t in (torch.rand(3, 4), torch.rand(5, 4), torch.rand(5))]
    for _ in range(300):
        step(*tensors)
    gc.collect()
    before = resident()
    for _ in range(steps):
        step(*tensors)
    gc.collect()
    return resident() - before


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_memory_stays_flat() -> None:
    grown_by(200)  # allocators warm up
    assert grown_by(1500) < 3 << 20


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_memory_stays_flat_for_a_million_calls() -> None:
    grown_by(200)
    assert grown_by(1_000_000 // 12) < 8 << 20  # a step makes twelve calls, rungs included


def test_threads_record_and_differentiate_at_once() -> None:
    x, weight, bias = torch.rand(3, 4), torch.rand(5, 4), torch.rand(5)
    expected = torch.autograd.functional.jacobian(lambda w: torch.sigmoid(x @ w.t() + bias).sum(), weight)
    errors: list[BaseException] = []
    shared = weight.clone().requires_grad_()
    graph = ow.sigmoid(ow.linear(x, shared, bias)).sum()

    def work() -> None:
        try:
            for _ in range(100):
                own = weight.clone().requires_grad_()
                ow.sigmoid(ow.linear(x, own, bias)).sum().backward()
                torch.testing.assert_close(own.grad, expected)
                torch.testing.assert_close(torch.autograd.grad(graph, shared, retain_graph=True)[0], expected)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_autograd_is_the_same_without_the_node() -> None:
    """The tests of the ladder once more, in a process that records in Python."""
    files = [f"tests/kit/test_{name}.py" for name in ("ladder", "in_place", "redefine", "reported", "leaks")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not soak", *files]
    environment = {**os.environ, "OPWRIGHT_NATIVE": "0", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout[-4000:]


ENDS = {
    "inference first": "with torch.inference_mode(): ow.axpby(x, x)",
    "plain first": "ow.axpby(x, x)",
    "recorded first": "ow.axpby(x.requires_grad_(), x).sum().backward()",
    "reference first": "ow.axpby(x.long(), x.long()); ow.axpby(x, x)",
    "graph left behind": "out = ow.sigmoid(ow.axpby(x.requires_grad_(), x))",
}


@pytest.mark.parametrize("order", ENDS)
def test_a_process_ends_cleanly(order: str) -> None:
    code = f"import torch, opwright as ow\nx = torch.ones(3)\n{ENDS[order]}\nprint('ends')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr


HELD = """
import gc, weakref
import torch, opwright as ow

def held(function, *tensors):
    for _ in range(3):  # the first calls keep more
        torch.autograd.grad(function(*tensors).sum(), tensors[0])
    inside = tensors[0] * 2  # which nobody else holds
    watched = weakref.ref(inside)
    out = function(inside, *tensors[1:])
    node = type("Mark", (), {})()
    out.grad_fn.metadata["mark"], node = node, weakref.ref(node)
    out.sum().backward()
    del inside, out
    return [name for name, ref in (("its input", watched), ("its node", node)) if ref() is not None]

gc.disable()
x, weight = torch.randn(2, 3, requires_grad=True), torch.randn(4, 3)
calls = {
    "cube": (ow.cube, x), "sigmoid": (ow.sigmoid, x), "linear": (ow.linear, x, weight),
    "cell": (lambda x, *rest: ow.lltm_cell(x, *rest)[0], x, torch.randn(12, 7), torch.randn(12), *torch.randn(2, 2, 4)),
}
found = {name: held(*call) for name, call in calls.items()}
assert not any(found.values()), found
"""


@pytest.mark.parametrize("native", ["1", "0"], ids=["recorded in C++", "recorded in Python"])
def test_what_a_call_keeps_goes_with_it_and_waits_for_no_collection(native: str) -> None:
    environment = {**os.environ, "OPWRIGHT_NATIVE": native} if native == "0" else dict(os.environ)
    done = subprocess.run([sys.executable, "-c", HELD], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
