"""The parent's side of a worker: starts it, asks it, and survives it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from opwright.kit.op import Op
from opwright.kit.workers.travel import Stranded, identity, ticket

PATIENCE = 300.0
"""Seconds without a sign of life after which a worker is given up."""
LOOK = 0.05
"""Seconds between looks at whether a silent worker is still there."""
Answer = dict[str, Any]


class Died(Exception):
    """A worker died, or was ended because its time was up."""

    def __init__(self, code: int | None, said: str, why: str = "") -> None:
        super().__init__(why or _cause(code or 0, said))
        self.code = code
        """Its exit status, or minus the signal that ended it; None: its time was up."""
        self.said = said
        """All that it printed."""

    @property
    def last(self) -> str:
        """The last line that it printed."""
        return last_line(self.said)


class Process(Protocol):
    """What a worker runs in."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and say how it ended, as subprocess does: minus the signal, or the exit status."""

    def kill(self) -> None:
        """End it at once."""

    def is_over(self) -> bool:
        """Whether it has ended, though one that it forked may still hold its channel."""


Start = Callable[[int, int], Process]
"""Starts a process that talks through one descriptor and prints to another."""


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of our processes: they import from where this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **more}


class Spawned(subprocess.Popen[bytes]):
    """A Python of its own, perhaps under a tool, in which `module` answers."""

    def __init__(self, module: str, more: Mapping[str, str], under: Sequence[str], channel: int, log: int) -> None:
        super().__init__(
            [*under, sys.executable, "-m", "opwright.kit.workers.child", module],
            stdin=channel,  # which tools hand on to the program under them
            stdout=log, stderr=log, env=environment(more),
            start_new_session=True,  # a Ctrl-C is ours to handle
        )  # fmt: skip

    def kill(self) -> None:
        """End it and what it started (compilers, the program under a tool)."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.poll() is not None


def spawning(module: str, more: Mapping[str, str], under: Sequence[str] = ()) -> Start:
    """Start a worker afresh, with more in its environment."""
    return lambda channel, log: Spawned(module, more, under, channel, log)


class Worker:
    """A process that answers requests, started when it is first asked something and again when it has died."""

    def __init__(self, start: Start) -> None:
        self._new = start
        self._process: Process | None = None
        self._known: dict[str, object] = {}
        """The operators that it has defined, by name, and what they were then."""
        self._rest = b""

    def define(self, op: Op[..., Any], seconds: float | None = None, paths: Sequence[str] = ()) -> None:
        """Let the worker define an operator, once; by loading `paths`, if there are any. Stranded: it cannot be."""
        name, now = op.home.qualname, identity(op)
        if name in self._known:
            if self._known[name] == now:
                return
            self.stop()  # it would check what the operator was
        self.ask(define=ticket(op, paths))
        answer = self.listen(seconds)
        if "error" in answer:
            if self._known:  # what it has defined before may be in the way
                self.stop()
                self.define(op, seconds, paths)
                return
            told: str = answer["message"]
            raise Stranded(told if answer["error"] == "LookupError" else f"{answer['error']}: {told}")
        self._known[name] = now

    def ask(self, **request: Any) -> None:
        """Send a request."""
        if self._process is None:
            self._start()
        self._channel.settimeout(PATIENCE)
        try:
            self._channel.sendall(json.dumps(request).encode() + b"\n")
        except TimeoutError:
            raise self._late(PATIENCE) from None
        except (BrokenPipeError, ConnectionResetError):
            pass  # whoever listens hears how it died

    def listen(self, seconds: float | None = None) -> Answer:
        """The next answer; the last one to a request has an `end`."""
        seconds = PATIENCE if seconds is None else seconds
        line = self._line(time.monotonic() + seconds, seconds)
        if line is None:
            raise self._died()
        answer: Answer = json.loads(line)
        return answer

    def finish(self, seconds: float) -> str:
        """Let it end by itself, after its last answer; all that it printed."""
        assert self._process is not None
        self._channel.shutdown(socket.SHUT_WR)
        end = time.monotonic() + seconds
        while self._line(end, seconds) is not None:
            pass
        try:
            self._process.wait(max(end - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            raise self._late(seconds) from None
        return self._died().said

    def _line(self, end: float, seconds: float) -> bytes | None:
        """What it writes next; None when it writes no more."""
        over = False
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            self._channel.settimeout(0.001 if over else max(min(left, LOOK), 0.001))
            try:
                piece = self._channel.recv(1 << 16)
            except TimeoutError:
                if over:  # and all that it wrote was read
                    return None
                over = self._process is not None and self._process.is_over()
                if left > LOOK or over:
                    continue
                raise self._late(seconds) from None
            except ConnectionResetError:  # it died before it had read all that it was asked
                piece = b""
            if not piece:
                return None
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _late(self, seconds: float) -> Died:
        said = self._said()
        self.stop()
        return Died(None, said, f"it did not return within {seconds:.0f} s")

    def _start(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the worker
        self._rest, self._known = b"", {}
        with theirs:
            self._process = self._new(theirs.fileno(), self._log.fileno())

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _died(self) -> Died:
        """What is known of a worker's end."""
        assert self._process is not None
        code, said = self._process.wait(), self._said()
        self._close()
        return Died(code, said)

    def _close(self) -> None:
        self._process, self._known = None, {}
        self._channel.close()
        self._log.close()

    def interrupt(self) -> None:
        """End its process at once, from another thread: the one that listens hears that it died."""
        process = self._process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """End the worker at once."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(RuntimeError, OSError):
                self._process.wait()
            self._close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _cause(code: int, said: str) -> str:
    for line in said.splitlines():
        if "ERROR: AddressSanitizer" in line or "runtime error:" in line:
            return line.partition("ERROR: ")[2].partition(" on address")[0] or line.strip()
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"it crashed with {signal.Signals(-code).name}"
    last = last_line(said)
    return f"it ended its process with status {code}{': ' if last else ''}{last[:200]}"


def last_line(said: str) -> str:
    """The last line of what a process printed; not what a profiler's probes say at its end."""
    lines = [line.strip() for line in said.splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("USDT")), "")
