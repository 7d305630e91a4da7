"""Running a program for what it says, safe from forks; an interrupt ends it, and all that it started."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Mapping

from opwright.kit import locks

_starting = locks.settled()
"""Held while a program starts. A child that is forked just then would inherit the ends of the pipes that the program
writes to, and whoever reads would wait until that child ends as well."""

apart = True
"""Whether programs get a session of their own, so that they are ended with all that they started (g++ starts cc1plus,
nvcc many). Not in a worker, which is ended with its own."""

_running: set[subprocess.Popen[str]] = set()
locks.in_child(_running.clear)  # they are the parent's

_stopped = -math.inf
"""When they were last stopped."""
JUST = 1.0
"""Seconds for which nothing is started after that, by threads that have not heard of it."""


def run(
    command: list[str],
    *,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as subprocess.run does, with what it wrote. KeyboardInterrupt: it was stopped, by
    `stop` in another thread or by a Ctrl-C that it got as we did."""
    global _stopped
    with _starting:
        refuse_stopped()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=env, cwd=cwd,
            start_new_session=apart,
        )  # fmt: skip
        started = time.monotonic()
        _running.add(process)
    try:
        with process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                _end(process)
                raise
    finally:
        _running.discard(process)
    if process.returncode == -signal.SIGINT:
        _stopped = time.monotonic()
    if process.returncode < 0 and _stopped >= started:
        raise KeyboardInterrupt
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def stop() -> None:
    """End all programs that run, in whatever thread. A signal interrupts Python's main thread alone, and the others
    would wait for their compilers."""
    global _stopped
    with _starting:
        _stopped = time.monotonic()
        for process in list(_running):
            _end(process)


def refuse_stopped() -> None:
    """Raise KeyboardInterrupt where everything was stopped just now."""
    if time.monotonic() - _stopped < JUST:
        raise KeyboardInterrupt


def _end(process: subprocess.Popen[str]) -> None:
    if apart and os.name == "posix" and process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
            return
    process.kill()
