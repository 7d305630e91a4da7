"""The processes that checks run in: started when first needed, lent to one operator at a time, kept for the next."""

from __future__ import annotations

import atexit
import contextlib
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

from opwright.kit import locks
from opwright.kit.check.property import environment_of
from opwright.kit.workers.forkserver import ForkServer
from opwright.kit.workers.worker import Worker

INSIDE = "OPWRIGHT_INSIDE_CHECK"
"""Set in the check's own processes, which must not start checks of their own."""

_idle: defaultdict[str, list[Worker]] = defaultdict(list)
_busy: set[Worker] = set()
_servers: list[ForkServer] = []
_lock = locks.renewed()


@contextlib.contextmanager
def borrowed(kind: str) -> Iterator[Worker]:
    """A worker for one operator at a time; it starts when it is first asked something, and is kept for the next."""
    with _lock:
        worker = _idle[kind].pop() if _idle[kind] else None
    if worker is None:
        worker = Worker(_server(kind).start)
    _busy.add(worker)
    try:
        yield worker
    except BaseException:
        worker.stop()
        raise
    finally:
        _busy.discard(worker)
    with _lock:
        _idle[kind].append(worker)


@lru_cache
def _server(kind: str) -> ForkServer:
    more = environment_of(kind)
    if kind and not more:
        return _server("")  # which forks processes for everybody
    server = ForkServer("opwright.kit.check.worker", {INSIDE: "1", **more})
    atexit.register(server.stop)
    _servers.append(server)
    return server


def interrupt() -> None:
    """End the processes that other threads wait for."""
    for worker in list(_busy):
        worker.interrupt()
    for server in _servers:
        server.interrupt()


@atexit.register
def _stop() -> None:
    for worker in (w for idle in _idle.values() for w in idle):
        worker.stop()
