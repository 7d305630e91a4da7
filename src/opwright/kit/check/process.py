"""The parent's side of a worker: starts it, asks it, and survives it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import tempfile
from typing import Any

from opwright.kit.check.nursery import Nursery
from opwright.kit.check.travel import ticket
from opwright.kit.op import Op

PATIENCE = 300.0
"""Seconds without a sign of life after which a case is given up."""


class Gone(Exception):
    """The worker died, or gave no sign of life."""


class Stranded(Exception):
    """The operator cannot be defined in another process."""


class Worker:
    """A process that checks operators, forked from a nursery when it is first asked something."""

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self._pid: int | None = None
        self._known: set[str] = set()
        self._rest = b""

    def define(self, op: Op[..., Any]) -> None:
        """Let the worker define an operator, once."""
        if op.home.qualname in self._known:
            return
        try:
            answer = self.ask(define=ticket(op))
        except LookupError as e:
            raise Stranded(str(e)) from None
        except Gone as e:
            raise Stranded(f"{op.name}: defining it in a process of its own ended that: {e}") from None
        if "error" in answer:
            if self._known:  # what it has defined before may be in the way
                self.stop()
                self.define(op)
                return
            raise Stranded(answer["message"])
        self._known.add(op.home.qualname)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and give its first answer."""
        if self._pid is None:
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
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        self._rest, self._known = b"", set()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed with the worker
        try:
            self._pid = self._nursery.spawn(theirs_in, theirs_out, self._said.fileno())
        finally:
            os.close(theirs_in)
            os.close(theirs_out)

    def _obituary(self) -> str:
        """What is known of a worker's end."""
        assert self._pid is not None
        code = self._nursery.status(self._pid)
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")
        self._pid = None
        self._close()
        for line in said.splitlines():
            if "ERROR: AddressSanitizer" in line or "runtime error:" in line:
                return line.partition("ERROR: ")[2].partition(" on address")[0] or line.strip()
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"it crashed with {signal.Signals(-code).name}"
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
        return f"it ended its process with status {code}{': ' if last else ''}{last[:200]}"

    def _close(self) -> None:
        self._known = set()
        for end in (self._to, self._from):
            with contextlib.suppress(OSError):
                os.close(end)
        self._said.close()

    def stop(self) -> None:
        """End the worker."""
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(RuntimeError, OSError):
                self._nursery.status(self._pid)
            self._pid = None
            self._close()
