"""The child's side of a worker: it answers requests until there are no more.

Both are lines of JSON, on one socket. What the work prints goes to the worker's log.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from typing import IO, Any

Say = Callable[..., None]
"""Called with what to answer, as keyword arguments."""


def serve(module: str, requests: Iterable[str], answers: IO[str], done: Callable[[], None] = lambda: None) -> None:
    """Answer requests with what a module's `answer(request, say)` says, and at the end with what it returns."""
    from opwright.kit.build import program
    from opwright.kit.workers.travel import arrive

    program.apart = False
    answer = importlib.import_module(module).answer

    def say(**said: Any) -> None:
        answers.write(json.dumps(said) + "\n")
        answers.flush()

    for line in requests:
        request = json.loads(line)
        try:
            last = {"defined": arrive(request["define"]).name} if "define" in request else answer(request, say)
        except Exception as e:
            last = {"error": type(e).__name__, "message": str(e)}
        done()
        say(end=True, **last)


def main() -> None:
    """Answer the requests on stdin. When there are no more while one is answered, whoever asked is gone."""
    requests: queue.Queue[str | None] = queue.Queue()
    channel = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    def read() -> None:
        with contextlib.suppress(ConnectionResetError):
            for line in channel.makefile(encoding="utf-8"):
                requests.put(line)
        if requests.unfinished_tasks:
            os._exit(1)
        requests.put(None)

    threading.Thread(target=read, daemon=True).start()
    # When memory runs out, the kernel should take this process and not the one that reports it.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    serve(sys.argv[1], iter(requests.get, None), channel.makefile("w", encoding="utf-8"), requests.task_done)


if __name__ == "__main__":
    main()
