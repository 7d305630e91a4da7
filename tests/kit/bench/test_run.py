"""Cases in processes of their own: what fails there is reported, and the rest goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

OPERATORS = """
import os, time
import torch
import opwright as ow

@ow.op
def wave(x: torch.Tensor) -> torch.Tensor:
    "sin x + 1."
    print("a line that is nobody's JSON")
    return torch.sin(x) + 1

@wave.samples
def _(make):
    yield make(3)

wave.bench("plain", sizes=(64, 4096))(lambda make, n: make(n))
"""
TROUBLE = """
def sleeps(x):
    time.sleep(1000)

def crashes(x):
    os.abort()

def dies(x):
    os.kill(os.getpid(), 9)

wave.variant("sleeps", sleeps)
wave.variant("crashes", crashes)
wave.variant("dies", dies)
wave.variant("wrong", lambda x: torch.sin(x) + 1.01)
wave.variant("right", lambda x: 1 + torch.sin(x))
"""


def start(tmp_path: Path, text: str, *more: str) -> subprocess.Popen[str]:
    file = tmp_path / "wave.py"
    file.write_text(text)
    command = [sys.executable, "-m", "opwright", "bench", str(file), "--without", "compiled", "--seconds", "0.05"]
    return subprocess.Popen(
        [*command, "--device", "cpu", "--results", str(tmp_path / "kept.json"), *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "OPWRIGHT_CACHE_DIR": str(tmp_path / "cache")},
        # What a shell starts in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


@pytest.mark.slow
def test_what_never_ends_crashes_or_is_killed_is_reported_and_the_rest_measured(tmp_path: Path) -> None:
    text = OPERATORS.replace("(64, 4096)", "(4096,)") + TROUBLE
    out, err = start(tmp_path, text, "--limit", "10", "--json", "-").communicate(timeout=250)
    assert out, err
    told = json.loads(out)  # nothing but JSON on stdout
    rows = {r["variant"]: r for r in told["rows"]}
    assert {name: r["status"] for name, r in rows.items()} == {
        "eager": "ok",
        "opwright": "ok",
        "sleeps": "timeout",
        "crashes": "crashed",
        "dies": "out of memory",
        "wrong": "wrong",
        "right": "ok",
    }
    assert rows["sleeps"]["why"] == "not done after 10 s"
    assert rows["crashes"]["why"].startswith("signal 6 (Aborted)")
    assert rows["right"]["forward_us"]["p50"] > 0
    assert {"op", "case", "dtype", "device", "variant"} <= set(rows["right"])
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["rows"] == told["rows"]
    assert kept["machine"]["threads"] >= 1
    assert kept["runs"][0]["versions"]["torch"]
    assert kept["runs"][0]["date"]
    assert kept["limits"]["cpu"]["copy"]
    assert kept["operators"]["wave"]["doc"] == "sin x + 1."


@pytest.mark.slow
def test_what_ends_its_process_when_it_is_verified_again_is_reported(tmp_path: Path) -> None:
    text = (
        OPERATORS.replace("(64, 4096)", "(64,)")
        + """
first = []

def later(x):
    first.append(float(x.max()))
    if first[-1] != first[0]:  # not when two elements have changed places
        os.abort()
    return torch.sin(x) + 1

wave.variant("later", later)
"""
    )
    out, err = start(tmp_path, text, "--json", "-").communicate(timeout=120)
    assert out, err
    rows = {r["variant"]: r for r in json.loads(out)["rows"]}
    assert {name: r["status"] for name, r in rows.items()} == {"eager": "ok", "opwright": "ok", "later": "crashed"}


def test_a_file_that_does_not_load_in_the_worker_is_reported(tmp_path: Path) -> None:
    once = "if 'worker' in sys.argv[0]: raise ImportError('only once')\n"
    done = start(tmp_path, "import sys\n" + once + OPERATORS)
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0, err
    rows = json.loads((tmp_path / "kept.json").read_text())["rows"]
    assert {(r["status"], "only once" in r["why"]) for r in rows} == {("crashed", True)}
    assert "crashed" in out


@pytest.mark.slow
def test_ctrl_c_leaves_what_was_measured_so_far_in_the_file(tmp_path: Path) -> None:
    slow = OPERATORS + '\nwave.bench("slow", sizes=(8,))(lambda make, n: time.sleep(600))\n'
    running = start(tmp_path, slow)
    kept = tmp_path / "kept.json"
    end = time.monotonic() + 100
    while not kept.exists():
        assert time.monotonic() < end
        assert running.poll() is None
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    assert "what was measured so far is in" in err
    assert "Traceback" not in err
    rows = json.loads(kept.read_text())["rows"]
    assert {r["case"] for r in rows} == {"plain 2^12"}
    assert {r["status"] for r in rows} == {"ok"}


def test_a_scaffolded_operator_is_measured_as_it_stands(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "opwright"]
    subprocess.run([*command, "new", "swish", "--path", str(tmp_path)], check=True, capture_output=True)
    options = ["--quick", "--without", "compiled", "--seconds", "0.05", "--device", "cpu", "--json", "-"]
    done = subprocess.run(
        [*command, "bench", "swish", "--results", str(tmp_path / "kept"), *options],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {(r["variant"], r["size"]) for r in rows} == {(v, n) for v in ("eager", "opwright") for n in (256, 1 << 20)}
    ours = next(r for r in rows if r["variant"] == "opwright" and r["stands"])
    assert (ours["status"], ours["runs"]) == ("ok", "cpu.cpp")
    assert ours["forward_host_us"] < ours["forward_us"]["p50"]
    assert ours["forward_fraction"] > 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--dtype", "int4"], "--dtype must be one of float32"),
        (["--device", "tpu"], "--device must be cpu or cuda"),
        (["--without", "eager"], "everything is compared with it"),
        (["--compare", "nowhere.json"], "nowhere.json: cannot be read"),
        (["no_such_operator"], "there is no operator, file or module 'no_such_operator'"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: list[str], why: str) -> None:
    running = start(tmp_path, OPERATORS, *arguments)
    _, err = running.communicate(timeout=100)
    assert running.returncode == 2
    assert why in err
    assert "Traceback" not in err
