"""Faults that the build must survive: killed builders, crowds, damage, bad disks, bad compilers."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opwright.kit.build import cache, compile, toolchain
from opwright.kit.build.plan import Plan
from opwright.kit.build.trouble import BuildError, explain_failure
from tests.kit.build.workshop import KERNEL_RAN, REFERENCE_RAN, USE, Workshop

needs_mount = pytest.mark.skipif(
    os.name != "posix" or os.getuid() != 0 or shutil.which("mount") is None, reason="only root can mount file systems"
)


def entry_of(workshop: Workshop) -> Path:
    (place,) = (workshop.cache / "entries").iterdir()
    return place


def plain_plan(folder: Path) -> Plan:
    """A plan that compiles quickly: what is tested is the way around the compiler."""
    source = folder / "quick.cpp"
    source.write_text("int answer() { return 42; }\n")
    return Plan("quick", (source,))


def kill_builders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Kill a building process at random moments, then ask for the library: it is there, and nobody waits."""
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    chance = random.Random(0)
    killed = 0
    for i in range(times):
        plan = plain_plan(tmp_path)
        plan.sources[0].write_text(f"int answer() {{ return {i}; }}\n")
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            try:
                compile.build(plan)
            finally:
                os._exit(0)
        time.sleep(chance.uniform(0, 0.12))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed += os.WIFSIGNALED(status)
        start = time.perf_counter()
        entry = compile.build(plan)
        assert time.perf_counter() - start < 60
        assert cache.look_up(tmp_path / "cache", plan.key) == entry
        assert not list((tmp_path / "cache" / "building").glob(f"{plan.key}.*"))
    assert killed > times // 4  # the moments were well chosen


def test_a_builder_killed_at_any_moment_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_builders(tmp_path, monkeypatch, 30)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_killed_builders_leave_nothing_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_builders(tmp_path, monkeypatch, 1000)


@pytest.mark.slow
def test_sixteen_processes_that_ask_at_once_compile_once(workshop: Workshop) -> None:
    folder = workshop.write()
    code = USE.format(folder=str(folder), name="times")
    crowd = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=workshop.environment,
        )
        for _ in range(16)
    ]  # fmt: skip
    said = [process.communicate(timeout=280) for process in crowd]
    assert [out.strip() for out, _ in said] == [KERNEL_RAN] * 16
    assert sum("building times/cpu.cpp" in err for _, err in said) == 1


def test_two_threads_that_call_first_build_once(workshop: Workshop) -> None:
    folder = workshop.write()
    done = workshop.run(f"""
        import threading, torch, opwright as ow
        op = ow.load({str(folder)!r}).times
        start, results = threading.Barrier(4), []
        def call():
            start.wait()
            results.append(op(torch.ones(1), by=4).item())
        threads = [threading.Thread(target=call) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        print(results)
    """)
    assert done.stdout.strip() == "[104.0, 104.0, 104.0, 104.0]", done.stderr
    assert done.stderr.count("building") == 1


@pytest.mark.parametrize("damage", ["truncated", "bit flipped", "empty", "no library", "no note", "garbled note"])
def test_a_damaged_entry_is_noticed_and_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    plan = plain_plan(tmp_path)
    entry = compile.build(plan)
    whole = entry.library.read_bytes()
    if damage == "truncated":
        entry.library.write_bytes(whole[: len(whole) // 2])
    elif damage == "bit flipped":
        entry.library.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
    elif damage == "empty":
        entry.library.write_bytes(b"")
    elif damage == "no library":
        entry.library.unlink()
    elif damage == "no note":
        (entry.library.parent / cache.ABOUT).unlink()
    else:
        (entry.library.parent / cache.ABOUT).write_text("[]")
    assert cache.look_up(tmp_path / "cache", plan.key) is None
    again = compile.build(plan)
    assert again.about["sha256"] == entry.about["sha256"]


@pytest.mark.parametrize("ends", [KeyboardInterrupt, BuildError])
def test_a_forced_build_that_fails_leaves_the_library_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: type[BaseException]
) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    plan = plain_plan(tmp_path)
    before = compile.build(plan)

    def stopped(*given: object) -> None:
        raise ends

    with monkeypatch.context() as patched:
        patched.setattr(compile, "_compile", stopped)
        with pytest.raises(ends):
            compile.build(plan, force=True)
    assert before.to_load()
    after = compile.build(plan, force=True)
    assert after.seen != before.seen
    assert after.to_load() == str(before.library)
    assert not list((tmp_path / "cache" / "building").iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k,mode=700", "tmpfs", str(place)], check=False)
    if done.returncode:
        pytest.skip("this machine does not let us mount file systems")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@needs_mount
def test_a_full_disk_gives_a_clear_message_and_the_reference(workshop: Workshop, small_disk: Path) -> None:
    folder = workshop.write()
    done = workshop.use(folder, OPWRIGHT_CACHE_DIR=str(small_disk / "cache"))
    assert done.stdout.strip() == REFERENCE_RAN
    assert "is full; make room, or" in done.stderr
    assert "Traceback" not in done.stderr


@needs_mount
def test_a_read_only_cache_serves_what_it_has_and_says_what_it_cannot(workshop: Workshop, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    had, missing = workshop.write("had"), workshop.write("missing")
    place = {"OPWRIGHT_CACHE_DIR": str(small_disk / "cache")}
    assert workshop.use(had, **place).stdout.strip() == KERNEL_RAN
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert workshop.use(had, **place).stdout.strip() == KERNEL_RAN
    done = workshop.use(missing, **place)
    assert done.stdout.strip() == REFERENCE_RAN
    assert "cannot be written; set OPWRIGHT_CACHE_DIR to a folder of yours" in done.stderr


@needs_mount
def test_a_disk_that_forbids_running_code_gives_the_reference(workshop: Workshop, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=20m,noexec", str(small_disk)], check=True)
    done = workshop.use(workshop.write(), OPWRIGHT_CACHE_DIR=str(small_disk / "cache"))
    assert done.stdout.strip() == REFERENCE_RAN
    assert "file system may forbid running code" in done.stderr


def test_a_cache_that_others_can_write_is_not_loaded_from(workshop: Workshop) -> None:
    folder = workshop.write()
    assert workshop.use(folder).stdout.strip() == KERNEL_RAN
    workshop.cache.chmod(0o777)
    done = workshop.use(folder)
    assert done.stdout.strip() == REFERENCE_RAN
    assert "can be written by others, so nothing is loaded from it; chmod go-w it" in done.stderr
    workshop.cache.chmod(0o700)
    if os.getuid() == 0:
        os.chown(workshop.cache / "entries", 12345, 12345)
        done = workshop.use(folder)
        assert done.stdout.strip() == REFERENCE_RAN
        assert "belongs to another user" in done.stderr


def test_a_compiler_error_shows_the_first_message_with_its_line(workshop: Workshop) -> None:
    folder = workshop.write(sign="no_such_thing")
    done = workshop.use(folder)
    assert done.returncode == 1
    message = done.stderr[done.stderr.index("BuildError") :]
    assert re.search(r"cpu\.cpp:\d+:\d+: error: .*no_such_thing", message)
    assert "return v * by + C(no_such_thing)" in message
    assert len(message.strip().splitlines()) < 10
    assert done.stderr.count('  File "') <= 3  # the caller, and next to nothing of opwright
    log = Path(re.search(r"The whole log: (.*)", message)[1])  # type: ignore[index]
    assert "no_such_thing" in log.read_text()


STABLE = "This file should not be included when either TORCH_STABLE_ONLY or TORCH_TARGET_VERSION is defined."


@pytest.mark.parametrize(
    ("first", "second", "log", "said"),
    [
        ("<ATen/ATen.h>", "<opwright/kernel.h>",
         'In file included from {source}:1:\n/x/torch/include/ATen/ATen.h:40:2: error: #error "{stable}"',
         '{source}:1: error: <ATen/ATen.h> is not of PyTorch\'s stable ABI, .*; add options=ow.Options.abi="aten".'),
        ("<opwright/kernel.h>", "<torch/extension.h>",
         "In file included from /x/torch/include/ATen/Functions.h:62,\n"
         "                 from /x/torch/include/torch/extension.h:6,\n                 from {source}:2:\n"
         "/x/torch/include/ATen/EmptyTensor.h:85:25: error: template argument 1 is invalid",
         "{source}:2: error: <torch/extension.h> must come before <opwright/kernel.h> .line 1."),
        ("<opwright/kernel.h>", "<torch/extension.h>",
         "In file included from {source}:2:\nIn file included from /x/torch/include/torch/extension.h:6:\n"
         "/x/torch/include/ATen/EmptyTensor.h:85:25: error: reference to 'Layout' is ambiguous",
         "{source}:2: error: <torch/extension.h> must come before <opwright/kernel.h> .line 1."),
        ("<torch/extension.h>", "<opwright/kernel.h>",
         "In file included from {source}:1:\n/x/torch/include/ATen/Other.h:85:25: error: something else",
         "Other.h:85:25: error: something else"),
    ],
)  # fmt: skip
def test_an_error_in_pytorchs_headers_is_told_as_what_the_author_did(
    tmp_path: Path, first: str, second: str, log: str, said: str
) -> None:
    source = tmp_path / "cpu.cpp"
    source.write_text(f"#include {first}\n#include {second}\n")
    error = explain_failure("mine", 1, log.format(source=source, stable=STABLE), None)
    assert re.search(said.format(source=source), str(error)), str(error)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#include <torch/extension.h>", r"cpu\.cpp:1: error: <torch/extension\.h> is not of PyTorch's stable ABI"),
        ("OPWRIGHT_KERNEL(f, CPU, f)", r"cpu\.cpp:\d:1: error: expected ';' after OPWRIGHT_KERNEL"),
    ],
)
def test_the_compiler_itself_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    above = "" if "include" in text else "#include <opwright/kernel.h>\nTensor f(const Tensor& x) { return x; }\n"
    source = tmp_path / "cpu.cpp"
    source.write_text(above + text)
    plan = Plan("mine", (source,), defines=("OPWRIGHT_NAMESPACE=mine", "OPWRIGHT_KEY={key}"))
    with pytest.raises(BuildError, match=said) as caught:
        compile.build(plan)
    assert "kernel.h:" not in str(caught.value)


def test_a_source_that_does_not_compile_is_compiled_once_until_it_is_mended(workshop: Workshop) -> None:
    folder = workshop.write(sign="SIGN", more='#define WHICH "sign.h"\n#include WHICH')
    (folder / "sign.h").write_text("#define SIGN no_such_thing\n")
    done = workshop.run(f"""
        import pathlib, torch, opwright as ow
        folder = pathlib.Path({str(folder)!r})
        source, header = folder / "cpu.cpp", folder / "sign.h"
        op = ow.load(folder).times
        def call(op):
            try:
                return op(torch.ones(3), by=4).tolist()
            except RuntimeError as e:
                return "no_such_thing" in str(e)
        print([call(op) for _ in range(3)])
        source.write_text(source.read_text() + "// another")
        print([call(op) for _ in range(3)])
        op = ow.load(folder).times
        print([call(op) for _ in range(3)])
        header.write_text("#define SIGN 100")
        op.build()
        print(call(op))
    """)
    tried = [str([True] * 3)] * 3
    assert done.stdout.splitlines() == [*tried, KERNEL_RAN], done.stderr
    # The last twice: a header that a macro names is known once it was compiled with, and then belongs to the key.
    assert done.stderr.count("building times/cpu.cpp") == 5, done.stderr


def test_a_kernel_that_is_not_bound_is_named(workshop: Workshop) -> None:
    folder = workshop.write()
    source = folder / "cpu.cpp"
    source.write_text(source.read_text().replace("OPWRIGHT_KERNEL(times,", "OPWRIGHT_KERNEL(other,"))
    done = workshop.use(folder)
    assert "WrongKernel" in done.stderr
    assert "binds no kernel to it; it binds other; add `OPWRIGHT_KERNEL(times, CPU, your_function);`" in done.stderr
    source.unlink()
    assert "there is no source" in workshop.use(folder).stderr


@pytest.mark.parametrize(
    "script, sentence",
    [
        (None, "there is no compiler"),
        ("kill -9 $$", "the compiler was killed, most likely for lack of memory"),
        ("echo 'cc1plus: out of memory allocating 65536 bytes' >&2; exit 1", "set OPWRIGHT_JOBS=1"),
        ("echo 'fatal error: No space left on device' >&2; exit 1", "the disk that holds the cache is full"),
    ],
)
def test_a_compiler_that_cannot_work_gives_the_reference(workshop: Workshop, script: str | None, sentence: str) -> None:
    compiler = workshop.root / "compiler"
    if script is not None:
        compiler.write_text(f"#!/bin/sh\n{script}\n")
        compiler.chmod(0o755)
    done = workshop.use(workshop.write(), CXX=str(compiler))
    assert done.stdout.strip() == REFERENCE_RAN, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_two_torch_versions_share_a_cache_and_not_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    first = compile.build(plain_plan(tmp_path))
    monkeypatch.setattr(toolchain, "torch_identity", lambda: "another torch")
    second = compile.build(plain_plan(tmp_path))
    assert first.library != second.library
    assert {e.about["torch"] for e in cache.entries(tmp_path / "cache")} == {first.about["torch"], "another torch"}


def test_jobs_are_bounded_by_memory_and_by_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPWRIGHT_JOBS", raising=False)
    monkeypatch.setattr(toolchain, "free_memory", lambda: 1 << 30)
    assert toolchain.jobs() == 1
    monkeypatch.setenv("OPWRIGHT_JOBS", "7")
    assert toolchain.jobs() == 7
    monkeypatch.setenv("OPWRIGHT_JOBS", "many")
    with pytest.raises(ValueError, match="OPWRIGHT_JOBS must be a positive number, got 'many'"):
        toolchain.jobs()


@pytest.mark.parametrize("command", ["build", "check"])
@pytest.mark.parametrize("interrupt", [os.killpg, os.kill], ids=["everybody", "it_alone"])
def test_an_interrupt_stops_a_build_at_once(workshop: Workshop, command: str, interrupt: Callable[..., None]) -> None:
    """A terminal's Ctrl-C reaches all that it started; what an editor or a supervisor sends reaches it alone."""
    folder = str(workshop.write())
    building = subprocess.Popen(
        [sys.executable, "-m", "opwright", command, folder],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=workshop.environment, start_new_session=True,
        # What a shell starts in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert building.stdout is not None
    while "building" not in building.stdout.readline():
        pass
    time.sleep(1)
    assert compilers(workshop.cache)
    interrupt(building.pid, signal.SIGINT)
    said, _ = building.communicate(timeout=10)
    assert building.returncode == 130
    assert "stopped; 0 " in said
    assert "opwright: built" not in said
    assert not compilers(workshop.cache)
    assert not list((workshop.cache / "entries").iterdir())


def compilers(cache: Path) -> list[str]:
    """The commands of processes that write into a cache."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(process.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [command for command in found if str(cache) in command]
