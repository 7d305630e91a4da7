"""A process may fork at any moment, also in the middle of a build: its children call operators as it does."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from opwright.kit import locks
from opwright.kit.build import lockfile
from tests.kit.build.workshop import KERNEL_RAN, Workshop

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

FORK = """
import faulthandler, os, signal, sys, threading, time
import torch, opwright as ow
op = ow.load({folder!r}).times
call = lambda: op(torch.ones(3), by=4).tolist()
thread = threading.Thread(target=call, daemon=True)
thread.start()
while not os.path.isdir({cache!r} + "/building") or not os.listdir({cache!r} + "/building"):
    time.sleep(0.01)
ready, go = os.pipe()
pid = os.fork()
if pid == 0:
    faulthandler.dump_traceback_later(40)  # where it hangs, if it does
    signal.alarm(60)
    os.close(go)
    {child}
    print("child", call(), flush=True)
    os._exit(0)
{parent}
"""


def slow_compiler(workshop: Workshop, seconds: float = 1) -> str:
    """A compiler that is at work for long enough to be met there."""
    compiler = workshop.root / "g++"
    compiler.write_text(f'#!/bin/sh\nsleep {seconds}\nexec {os.environ.get("CXX", "g++")} "$@"\n')
    compiler.chmod(0o755)
    return str(compiler)


def test_a_child_forked_while_a_thread_builds_waits_for_the_result(workshop: Workshop) -> None:
    code = FORK.format(
        folder=str(workshop.write()),
        cache=str(workshop.cache),
        child="pass",
        parent="""_, status = os.waitpid(pid, 0)
print("ended", status, flush=True)
thread.join()
print("parent", call())""",
    )
    done = workshop.run(code, CXX=slow_compiler(workshop))
    assert done.stdout.splitlines() == [f"child {KERNEL_RAN}", "ended 0", f"parent {KERNEL_RAN}"], done.stderr
    assert done.stderr.count("opwright: building times/cpu.cpp") == 1


def test_a_child_of_a_killed_builder_takes_the_lock_and_builds(workshop: Workshop) -> None:
    code = FORK.format(
        folder=str(workshop.write()),
        cache=str(workshop.cache),
        child="os.read(ready, 1)",  # until the parent is gone
        parent="os.kill(os.getpid(), signal.SIGKILL)",
    )
    done = workshop.run(code, CXX=slow_compiler(workshop))
    assert done.returncode == -9
    assert done.stdout.strip() == f"child {KERNEL_RAN}", done.stderr
    assert not list((workshop.cache / "building").iterdir())


def test_a_lock_goes_with_its_holder_though_a_child_lives_on(workshop: Workshop) -> None:
    code = FORK.format(
        folder=str(workshop.write()),
        cache=str(workshop.cache),
        child="os.dup2(os.open(os.devnull, os.O_WRONLY), 1); os.dup2(1, 2); time.sleep(30); os._exit(0)",
        parent="print(pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    )
    building = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False,
        env={**workshop.environment, "CXX": slow_compiler(workshop)},
    )  # fmt: skip
    child = int(building.stdout)
    for file in (workshop.cache / "locks").iterdir():
        soon = time.monotonic() + 10  # a compiler that was being started has the lock until it has begun
        with lockfile.opened(file) as held:
            while not lockfile.take(held, wait=False):
                assert time.monotonic() < soon, file
                time.sleep(0.01)
    os.kill(child, 9)


WORKERS = """
import sys, torch, opwright as ow
from torch.utils.data import DataLoader, Dataset

class Calls(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return ow.load(FOLDER).times(torch.full((1,), float(i)), by=4)

FOLDER, METHOD, BEFORE = {folder!r}, {method!r}, {before}
if __name__ == "__main__":
    torch.set_num_threads(2)
    op = ow.load(FOLDER).times
    if BEFORE:
        op(torch.ones(1 << 20), by=4)
    loader = DataLoader(Calls(), num_workers=2, multiprocessing_context=METHOD, timeout=100)
    print([batch.item() for batch in loader], op(torch.ones(1), by=4).item())
"""


@pytest.mark.parametrize(
    ("method", "before"),
    [
        pytest.param(m, b, id=f"{m}-{'again' if b else 'first'}", marks=[pytest.mark.slow] if b and m != "fork" else [])
        for m in ("fork", "spawn", "forkserver")
        for b in (False, True)
    ],
)
def test_workers_of_a_loader_call_kernels(workshop: Workshop, method: str, before: bool) -> None:
    file = workshop.root / "work.py"
    file.write_text(WORKERS.format(folder=str(workshop.write()), method=method, before=before))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=False, timeout=200,
        env={**workshop.environment, "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert done.stdout.strip() == "[100.0, 104.0, 108.0, 112.0] 104.0", done.stderr
    assert done.stderr.count("opwright: building times/cpu.cpp") == 1


def test_a_child_calls_what_its_parent_called_through_the_own_libraries(workshop: Workshop) -> None:
    folder = workshop.with_own_libraries().write()
    done = workshop.run(f"""
        import os, signal, torch, opwright as ow
        op = ow.load({str(folder)!r}).times
        x = torch.ones(3, requires_grad=True)
        def call():
            out = op(x, by=4)
            return out.tolist(), torch.autograd.grad(out.sum(), x)[0].tolist()
        expected = call()
        assert expected[0] == {KERNEL_RAN}
        if os.fork() == 0:
            signal.alarm(60)
            assert call() == expected == call()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """)
    assert done.stdout.strip() == "0", done.stderr


def in_child(work: str) -> bool:
    """Whether a forked child of a process that ran this code ends well."""
    code = f"""
import faulthandler, os, signal, sys, threading, time
from opwright.kit import locks
{work}
if os.fork() == 0:
    signal.alarm(3)
    after()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    return subprocess.run([sys.executable, "-c", code], check=False, timeout=100).returncode == 0


def test_a_lock_that_another_thread_holds_is_free_in_a_child() -> None:
    work = """
lock = locks.renewed()
def hold():
    with lock:
        held.set()
        time.sleep(60)
held = threading.Event()
threading.Thread(target=hold, daemon=True).start()
held.wait()
def after():
    with lock, lock:
        pass
"""
    assert in_child(work)
    assert not in_child(work.replace("locks.renewed()", "threading.RLock()"))


def test_a_lock_that_the_forking_thread_holds_stays_its_own() -> None:
    assert in_child("""
lock = locks.settled()
lock.__enter__()
def after():
    lock.__exit__(None, None, None)
    try:
        lock.__exit__(None, None, None)
    except RuntimeError:
        return  # it was held once
    os._exit(1)
""")


def test_a_fork_waits_for_what_must_not_be_seen_half_done() -> None:
    assert in_child("""
lock, done = locks.settled(), []
def work():
    with lock:
        held.set()
        time.sleep(0.5)
        done.append(1)
held = threading.Event()
threading.Thread(target=work, daemon=True).start()
held.wait()
def after():
    assert done
    with lock:
        pass
""")


def test_a_fork_takes_locks_from_the_outside() -> None:
    """As the code takes them, which would else hold one of two while the fork holds the other."""
    from opwright.kit import op as operator
    from opwright.kit.dispatch import node, registry

    outer, inner = [locks.settled(locks.NODE) for _ in range(20)], [locks.settled() for _ in range(20)]
    nested = [node._lock, operator._making, locks.loading, registry.lock, *inner]
    locks._before()
    try:
        held = locks._held[threading.get_ident()]
        places = [next(i for i, lock in enumerate(held) if lock is each) for each in nested]
        assert places[:4] == sorted(places[:4])
        assert max(places[:4]) < min(places[4:])
        assert all(held.index(each) < places[1] for each in outer)
    finally:
        locks._after()


def test_forks_do_not_stall_while_operators_are_recorded() -> None:
    assert in_child("""
from opwright.kit import op as operator
from opwright.kit.dispatch import node, registry
def work():
    while True:
        with node._lock:
            time.sleep(0.001)
            with operator._making, registry.lock:
                time.sleep(0.001)
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
start = time.monotonic()
for _ in range(10):
    if os.fork() == 0:
        os._exit(0)
    os.wait()
took = time.monotonic() - start
def after():
    assert took < locks.PATIENCE, took
""")


def test_locks_are_not_kept_alive() -> None:
    before = len(locks._renewed)
    made = [locks.renewed() for _ in range(50)]
    assert len(locks._renewed) == before + 50
    del made
    gc.collect()
    assert len(locks._renewed) <= before


def test_programs_do_not_inherit_a_lock(tmp_path: Path) -> None:
    with lockfile.opened(tmp_path / "lock") as held:
        assert lockfile.take(held, wait=False)
        assert not os.get_inheritable(held)
        other = subprocess.Popen(["sleep", "30"], close_fds=False)
    try:
        with lockfile.opened(tmp_path / "lock") as again:
            assert lockfile.take(again, wait=False)
    finally:
        other.kill()
        other.wait()


def test_on_windows_a_lock_that_somebody_holds_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [PermissionError(13, "Permission denied")] * 3

    def locking(descriptor: int, mode: int, size: int) -> None:
        assert mode == 2, "the one that waits gives up after ten seconds"
        if refusals:
            raise refusals.pop()

    windows = types.SimpleNamespace(LK_LOCK=1, LK_NBLCK=2, locking=locking)
    monkeypatch.setitem(sys.modules, "msvcrt", windows)  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "platform", "win32")
    with lockfile.opened(tmp_path / "lock") as held:
        assert not lockfile.take(held, wait=False)
        assert lockfile.take(held, wait=True)
    assert not refusals


def test_threads_exclude_each_other_by_the_file(tmp_path: Path) -> None:
    inside, most = [], []

    def enter() -> None:
        with lockfile.opened(tmp_path / "lock") as held:
            lockfile.take(held, wait=True)
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
