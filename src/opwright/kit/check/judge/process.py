"""One of the candidate's processes, as the judge sees it: asked with a limit of time, and started again when it has
died."""

from __future__ import annotations

import atexit
import secrets
from functools import lru_cache
from typing import Any

from opwright.kit.check.guard import NoGuard
from opwright.kit.check.judge.named import Missing
from opwright.kit.check.pool import INSIDE
from opwright.kit.workers.forkserver import ForkServer
from opwright.kit.workers.worker import Died, Worker

LOADING = 300.0
"""Seconds that importing the candidate may take, at least: some compile."""


class Charge(BaseException):
    """What a candidate did beside giving results. No Exception, which the properties take for the function's own."""

    def __init__(self, cls: str, message: str) -> None:
        super().__init__(message)
        self.cls, self.message = cls, message


class Process:
    """A process that knows a candidate and what it needs to answer calls."""

    def __init__(self, watched: bool = False, **about: Any) -> None:
        self.watched = watched
        """Whether the allocator that watches over memory serves in it, from its first tensor to its last."""
        self._about = about
        self._worker = Worker(_server().start)
        self._ready = False

    def end(self) -> None:
        """End it; the next question goes to a new one."""
        self._worker.stop()
        self._ready = False

    def load(self, seconds: float, **more: Any) -> None:
        """Let it import the candidate, unless it has. Missing: there is none of its name. NoGuard: memory cannot be
        watched there."""
        if self._ready:
            return
        answer = self.ask(max(LOADING, seconds), **self._about, **more, watched=self.watched)
        if not {"missing", "unwatched", "raised"}.isdisjoint(answer):
            self.end()
        if "missing" in answer:
            raise Missing(f"check: {answer['missing']}")
        if "unwatched" in answer:
            raise NoGuard(str(answer["unwatched"]))
        if "raised" in answer:
            kind, message = answer["raised"]
            raise Charge("crash", f"importing it raised {kind}: {message}")
        self._ready = True

    def ask(self, seconds: float, **request: Any) -> dict[str, Any]:
        """What it answers, in time."""
        ticket = secrets.token_hex(8)  # so that what is written to the channel by others is not taken for an answer
        try:
            self._worker.ask(**request, ticket=ticket)
            answer = self._worker.listen(seconds)
            if not isinstance(answer, dict) or answer.get("ticket") != ticket:
                raise ValueError
        except Died as e:
            self.end()
            if e.code is None:
                what = "importing it took" if "load" in request else "it did not return within"
                raise Charge("timeout", f"{what} {'more than ' * ('load' in request)}{seconds:g} s") from None
            raise Charge("crash", str(e)) from None
        except (ValueError, RecursionError):
            self.end()
            raise Charge("cheats", "its process wrote to the judge by itself") from None
        return answer


@lru_cache
def _server() -> ForkServer:
    server = ForkServer("opwright.kit.check.judge.child", {INSIDE: "1"})
    atexit.register(server.stop)
    return server
