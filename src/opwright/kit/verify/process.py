"""The parent's side of a worker: starts it, asks it, and survives it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from typing import Any

from opwright.kit.op import Op
from opwright.kit.verify.report import Failure
from opwright.kit.verify.travel import ticket

PATIENCE = 300.0
"""Seconds without a sign of life after which a case is given up."""


class Gone(Exception):
    """The worker died, or gave no sign of life."""


class Stranded(Exception):
    """The operator cannot be defined in another process."""


class Worker:
    """A process that checks operators, with everything that must be kept to start another in its place."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._known: set[str] = set()
        self._rest = b""

    def define(self, op: Op[..., Any]) -> None:
        """Let the worker define an operator, once."""
        if op.home.qualname in self._known and self._alive:
            return
        try:
            answer = self.ask(define=ticket(op))
        except LookupError as e:
            raise Stranded(str(e)) from None
        except Gone as e:
            raise Stranded(f"{op.name}: defining it in a process of its own ended that: {e}") from None
        if "error" in answer:
            raise Stranded(answer["message"])
        self._known.add(op.home.qualname)

    @property
    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and give its first answer."""
        if not self._alive:
            self._start()
        try:
            os.write(self._to, json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise Gone(self._obituary()) from None
        return self.listen()

    def listen(self) -> dict[str, Any]:
        """The next answer."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._from, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(PATIENCE):
                    self.stop()
                    raise Gone(f"it did not return within {PATIENCE:.0f} s")
                piece = os.read(self._from, 1 << 16)
                if not piece:
                    raise Gone(self._obituary())
                self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> None:
        self.stop()
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        self._rest, self._known = b"", set()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed with the worker
        command = [sys.executable, "-m", "opwright.kit.verify.worker", str(theirs_in), str(theirs_out)]
        paths = os.pathsep.join(p for p in sys.path if p)
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONFAULTHANDLER": "1", **self._environment}
        self._process = subprocess.Popen(
            command, pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said,
            env=environment,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)

    def _obituary(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")
        for line in said.splitlines():
            if "ERROR: AddressSanitizer" in line or "runtime error:" in line:
                return line.partition("ERROR: ")[2].partition(" on address")[0] or line.strip()
        self._fields_cleared()
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"it crashed with {signal.Signals(-code).name}"
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
        return f"the process ended with status {code}: {last[:200]}"

    def _fields_cleared(self) -> None:
        self._known = set()

    def stop(self) -> None:
        """End the worker."""
        if self._process is None:
            return
        for end in (self._to, self._from):
            with contextlib.suppress(OSError):
                os.close(end)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.05)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._said.close()
        self._process = None
        self._known = set()


def failure_from(answer: dict[str, Any]) -> Failure:
    """A failure as a worker tells it."""
    return Failure(**answer)
