"""The command line, as a person or a script runs it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import opwright as ow
from opwright.cli import main
from opwright.kit import doctor
from opwright.kit.doctor.cuda import explain_error
from tests.library import OPERATORS


def run(*arguments: str, fails: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "opwright", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == fails, done.stderr
    return done


def test_list_names_every_operator() -> None:
    rows = json.loads(run("list", "--json").stdout)
    assert [row["op"] for row in rows] == [f"opwright.{op.name}" for op in OPERATORS]
    axpby = next(row for row in rows if row["op"] == "opwright.axpby")
    assert axpby["rungs"] == ["axpby_backward"]
    shown = run("list").stdout
    assert "axpby_backward" in shown
    for row in rows:
        assert f"  {row['schema']}\n" in shown, "in one line, however long"


def test_new_scaffolds_an_operator_that_works_as_it_stands(tmp_path: Path) -> None:
    said = run("new", "swish", "--path", str(tmp_path)).stdout
    assert "op.py" in said
    rows = json.loads(run("list", str(tmp_path / "swish"), "--json").stdout)
    assert [(row["op"], row["kernels"]) for row in rows] == [("user.swish", ["cpu"])]
    op = ow.load(tmp_path / "swish").swish
    assert ow.explain(op, torch.ones(3)).runs == "cpu.cpp"
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(op(x, beta=2.0), x * torch.sigmoid(2 * x))
    assert torch.autograd.gradcheck(op, (x,))
    compiled: Any = torch.compile(op, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), op(x))
    make = ow.Maker()
    assert len(op.draw_samples(make)) == 4
    for sample in op.draw_samples(make):
        torch.testing.assert_close(op(*sample.args, **sample.kwargs), op.reference(*sample.args, **sample.kwargs))
        assert op.cost_of(*sample.args, **sample.kwargs) is not None
    for reject in op.draw_rejects(make):
        with pytest.raises(reject.error, match=reject.message):
            op(*reject.args, **reject.kwargs)


@pytest.mark.slow
def test_new_writes_tests_that_pass(tmp_path: Path) -> None:
    run("new", "tested_swish", "--path", str(tmp_path))
    told = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "forward"]
    done = subprocess.run(told, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout  # the operator and its gradient


@pytest.mark.parametrize("name", ["a b", "1st", "class", "", "_hidden", "swish_", "../evil", "naïve"])
def test_new_refuses_what_cannot_name_an_operator(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["opwright", "new", "--path", str(tmp_path), "--", name])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("opwright: ")
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_new_overwrites_nothing(tmp_path: Path) -> None:
    run("new", "mine", "--path", str(tmp_path))
    (tmp_path / "mine" / "op.py").write_text("precious")
    assert "exists already" in run("new", "mine", "--path", str(tmp_path), fails=2).stderr
    assert (tmp_path / "mine" / "op.py").read_text() == "precious"


def test_doctor_speaks_of_this_machine() -> None:
    findings = json.loads(run("doctor", "--json").stdout)
    assert [f["what"] for f in findings] == [
        "Python",
        "PyTorch",
        "C++ compiler",
        "cache",
        "opwright's own C++",
        "NVIDIA driver",
        "nvcc",
        "CUDA versions",
        "GPU",
        "CUDA kernels",
    ]
    assert torch.__version__ in findings[1]["found"]
    assert all(f["fix"] == f["mend"] != "" for f in findings if f["verdict"] != "ok")
    assert "PyTorch" in run("doctor").stdout


def test_doctor_says_how_to_fix_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = {f.what: f for f in doctor.examine()}
    assert found["C++ compiler"].verdict == "missing"
    assert "apt install g++" in found["C++ compiler"].fix
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = {f.what: f for f in doctor.examine()}
    assert found["C++ compiler"].verdict == "broken"
    old = tmp_path / "old-g++"
    old.write_text("#!/bin/sh\necho 'g++ (Debian 9.4.0-1) 9.4.0'\n")
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    found = {f.what: f for f in doctor.examine()}
    assert (found["C++ compiler"].verdict, found["C++ compiler"].fix) == ("broken", "version 11 or newer is needed")


def test_version_and_mistakes() -> None:
    assert run("--version").stdout.strip() == ow.__version__
    assert "there is no file or folder" in run("list", "/nowhere", fails=2).stderr


@pytest.mark.slow
def test_doctor_looks_at_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(name: str, source: str) -> Path:
        (tmp_path / "source.cpp").write_text(source)
        library = tmp_path / name
        subprocess.run(["g++", "-shared", "-fPIC", str(tmp_path / "source.cpp"), "-o", str(library)], check=True)
        return library

    good = link("good.so", 'extern "C" void* PyInit_good() { return nullptr; }')
    assert json.loads(run("doctor", str(good), "--json").stdout)[0]["verdict"] == "ok"
    assert doctor.examine_library(Path(os.path.relpath(good)))[0].verdict == "ok"
    with monkeypatch.context() as here:
        here.chdir(tmp_path)
        assert doctor.examine_library(Path("good.so"))[0].verdict == "ok"
    renamed = link("renamed.so", 'extern "C" void* PyInit_other() { return nullptr; }')
    assert "rename the file to other.so" in json.loads(run("doctor", str(renamed), "--json", fails=1).stdout)[1]["fix"]
    old = link("old.so", "namespace c10 { void gone(); } struct S { S() { c10::gone(); } } s;")
    found = json.loads(run("doctor", str(old), "--json", fails=1).stdout)[0]
    assert "undefined symbol" in found["found"]
    assert "it was built for another torch" in found["fix"]
    short = tmp_path / "short.so"
    short.write_bytes(b"\x7fELF")
    assert "no whole library" in json.loads(run("doctor", str(short), "--json", fails=1).stdout)[0]["fix"]
    crash = link("crash.so", "struct S { S() { *(volatile int*)nullptr = 1; } } s;")
    assert "crashes while loading" in json.loads(run("doctor", str(crash), "--json", fails=1).stdout)[0]["fix"]


def test_paths_and_schemas_are_printed_as_they_are(tmp_path: Path) -> None:
    said = run("new", "swish_shown", "--path", str(tmp_path / "a [/b] c")).stdout
    assert f"opwright check '{tmp_path / 'a [/b] c' / 'swish_shown'}'" in said.replace("\n", "")
    file = tmp_path / "marked.py"
    source = "def marked(x: torch.Tensor, mode: str = '[/red]') -> torch.Tensor:\n    return x * 2\n"
    file.write_text(f"import torch\nimport opwright as ow\n\n@ow.op\n{source}")
    assert "[/red]" in run("list", str(file)).stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", [("check", "axpby", "--thorough", "90"), ("build",)])
def test_ctrl_c_stops_soon_and_tells_what_is_known(command: tuple[str, ...], tmp_path: Path) -> None:
    environment = os.environ | ({"OPWRIGHT_CACHE_DIR": str(tmp_path / "cache")} if command == ("build",) else {})
    running = subprocess.Popen(
        [sys.executable, "-m", "opwright", *command],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(20)
    began = time.monotonic()
    os.killpg(running.pid, signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert time.monotonic() - began < 10  # within two seconds on a machine that does nothing else
    assert re.search(r"stopped; \d+ (properties hold in \d+ cases|of \d+ libraries are built)", said), said


SLOW = """
import time, torch, opwright as ow
def define(name):
    def slow(x: torch.Tensor) -> torch.Tensor:
        return x + 1
    op = ow.op(name=name)(slow)
    op.samples(lambda make: iter([(make(3),)]))
    @op.kernel("cpu")
    def kernel(x):
        time.sleep(30)
        return x + 1
    return op
slow_one, slow_two = define("slow_one"), define("slow_two")
"""


@pytest.mark.parametrize("names", [["slow_one"], []], ids=["one", "several"])
@pytest.mark.slow
def test_an_interrupt_of_the_check_alone_ends_its_processes(names: list[str], tmp_path: Path) -> None:
    file = tmp_path / "slow.py"
    file.write_text(SLOW if not names else SLOW.replace('define("slow_two")', "None"), encoding="utf-8")
    running = subprocess.Popen(
        [sys.executable, "-m", "opwright", "check", str(file)],
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(12)
    began = time.monotonic()
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert time.monotonic() - began < 8  # about one second on a machine that does nothing else
    assert "stopped; " in said
    assert "Traceback" not in said
    assert not alive_in_group(running.pid)


def alive_in_group(group: int) -> list[str]:
    """The processes of a group, but for those that are dead and that nobody has waited for."""
    found = []
    for process in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = process.read_text().rpartition(")")
            state, _, its_group = rest.split()[:3]
            found += [name] if int(its_group) == group and state != "Z" else []
    return found


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("new", "class"), "'class' cannot name an operator: it is a word of Python's own"),
        (("new", "_x"), "'_x' cannot name an operator: a name must begin with a letter"),
        (("check", "cube", "--device", "tpu"), "the device must be cpu or cuda, got 'tpu'"),
        (("bench", "cube", "--results", "/proc/nope"), "/proc/nope: no such file or directory"),
        (("check", "cube", "--json", "/proc/nope"), "/proc/nope: no such file or directory"),
        (("check", "cube", "--json", "/nowhere/x.json"), "--json /nowhere/x.json: there is no such folder"),
        (("tensors", "coverage", "opwright.tensors:ScaledIdentity", "--json", "/proc/nope"), "/proc/nope: no such"),
    ],
)
def test_a_mistake_is_a_line_that_says_what_to_do(
    command: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["opwright", *command])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    out, err = capsys.readouterr()
    (line,) = err.strip().splitlines()
    assert said in line
    assert out == ""  # said before any work is done


@pytest.mark.parametrize(
    ("symbol", "fix"),
    [("_ZN5torch8autograd4NodeD1Ev", "built for another"), ("_Z6helperd", "in none of the library's sources")],
)
def test_doctor_knows_whose_symbol_is_missing(symbol: str, fix: str) -> None:
    found = explain_error(f"libmine.so: undefined symbol: {symbol}")
    assert fix in found.fix
    assert "CUDA" not in found.fix
