"""A worker answers, and what becomes of it is told; whoever asked goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opwright.kit.workers.forkserver import ForkServer
from opwright.kit.workers.worker import Died, Start, Worker, spawning

MODULE = "tests.kit.workers.answering"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    found = ForkServer(MODULE, {})
    yield found
    found.stop()


@pytest.fixture(params=["spawned", "forked"])
def start(request: pytest.FixtureRequest, server: ForkServer) -> Start:
    return spawning(MODULE, {}) if request.param == "spawned" else server.start


def last(worker: Worker) -> dict[str, object]:
    while "end" not in (answer := worker.listen(60)):
        pass
    return answer


def test_answers_come_in_order_and_an_error_is_one(start: Start) -> None:
    with Worker(start) as worker:
        worker.ask(do="count", to=3)
        assert [worker.listen(60).get("n") for _ in range(3)] == [0, 1, 2]
        pid = last(worker)["pid"]
        worker.ask(do="raise")
        assert last(worker) == {"end": True, "error": "ValueError", "message": "on purpose"}
        worker.ask(do="count", to=0)
        assert last(worker)["pid"] == pid


def test_a_death_is_told_with_its_cause_and_the_next_request_has_another_process(start: Start) -> None:
    with Worker(start) as worker:
        worker.ask(do="crash")
        with pytest.raises(Died, match=r"^it crashed with SIGSEGV$") as found:
            last(worker)
        assert found.value.code == -signal.SIGSEGV
        worker.ask(do="exit")
        with pytest.raises(Died, match=r"^it ended its process with status 3: the last line$") as found:
            last(worker)
        assert (found.value.code, found.value.last) == (3, "the last line")
        assert found.value.said.startswith("printed: ")
        worker.ask(do="count", to=0)
        assert "pid" in last(worker)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def soon(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()


def test_what_hangs_is_ended_with_all_that_it_started() -> None:
    with Worker(spawning(MODULE, {})) as worker:
        worker.ask(do="hang")
        pids = worker.listen(60)["pids"]
        with pytest.raises(Died, match=r"^it did not return within 1 s$") as found:
            worker.listen(0.6)
        assert found.value.code is None
        assert soon(lambda: not any(map(alive, pids)))


def test_a_worker_that_is_done_ends_by_itself() -> None:
    with Worker(spawning(MODULE, {})) as worker:
        worker.ask(do="count", to=1)
        last(worker)
        assert worker.finish(60).startswith("printed: ")
        with Worker(spawning(MODULE, {}, under=("/bin/sh", "-c", '"$@"; echo under', "sh"))) as tool:
            tool.ask(do="count", to=1)
            last(tool)
            assert tool.finish(60).splitlines()[-1] == "under"


PARENT = """
import sys
from opwright.kit.workers.forkserver import ForkServer
from opwright.kit.workers.worker import Worker, spawning
start = spawning({module!r}, {{}}) if sys.argv[1] == "spawned" else ForkServer({module!r}, {{}}).start
worker = Worker(start)
worker.ask(do="hang")
print(worker.listen(60)["pids"][0], flush=True)
worker.listen(600)
"""


@pytest.mark.parametrize("kind", ["spawned", "forked"])
def test_a_worker_dies_with_whoever_started_it(kind: str) -> None:
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT.format(module=MODULE), kind],
        stdout=subprocess.PIPE, text=True, cwd=root,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        os.kill(parent.pid, signal.SIGKILL)
    assert soon(lambda: not alive(pid))
