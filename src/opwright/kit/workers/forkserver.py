"""A process that has imported everything and from which workers are forked: one is had in milliseconds.

It runs no tensor operation itself, so that it has no threads which a fork would lose.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping

from opwright.kit import locks, private
from opwright.kit.workers.child import serve
from opwright.kit.workers.worker import environment


class ForkServer:
    """The parent's side: starts the process when it is first needed."""

    def __init__(self, module: str, more: Mapping[str, str]) -> None:
        self._module, self._more = module, more
        self._lock = locks.renewed()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, channel: int, log: int) -> Forked:
        """Fork a worker that talks through one descriptor and prints to another."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            with self._told():
                socket.send_fds(self._socket, [b"f"], [channel, log])
                return Forked(self, self._answer())

    def wait(self, pid: int) -> int:
        """Wait for a worker's end and say how it ended."""
        with self._lock, self._told():
            self._socket.sendall(b"w" + pid.to_bytes(8, "little"))
            return self._answer()

    def _answer(self) -> int:
        said = b""
        while len(said) < 8:
            piece = self._socket.recv(8 - len(said))
            if not piece:
                raise ConnectionError
            said += piece
        return int.from_bytes(said, "little", signed=True)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Say what the process said last, where it has ended."""
        try:
            yield
        except ConnectionError:
            assert self._process is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)  # it may still be writing
            self._log.seek(0)
            said = self._log.read().decode(errors="replace").strip().splitlines()
            where = [line.strip() for line in said if line.startswith("  File ")][-1:]
            last = "; ".join([said[-1], *where]) if said else "it said nothing"
            raise RuntimeError(f"a process of opwright's own ended, {self._module}: {last}") from None

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._socket, self._log = ours, tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "opwright.kit.workers.forkserver", self._module, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                # A look at the GPUs before a fork must not open them.
                env=environment({"OMP_WAIT_POLICY": "PASSIVE", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", **self._more}),
            )  # fmt: skip

    def interrupt(self) -> None:
        """End the process at once, from another thread; one that waits for it hears that it ended. Another is started
        when it is needed."""
        process = self._process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """End the process, and its workers with it."""
        if self._process is not None:
            self._socket.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._log.close()


class Forked:
    """A worker's process, which is the server's child."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self._pid = server, pid

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, however long that takes."""
        return self._server.wait(self._pid)

    def kill(self) -> None:
        """End it and what it started at once."""
        _end(self._pid)

    def is_over(self) -> bool:
        """Whether it has ended, though one that it forked may still hold its channel."""
        try:
            with open(f"/proc/{self._pid}/stat", encoding="utf-8", errors="replace") as file:
                return file.read().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return not os.path.exists(f"/proc/{self._pid}")


def tend(module: str, descriptor: int) -> None:
    """The process's side: fork on request, until the parent is gone; then no worker is needed any more."""
    alive: set[int] = set()
    here = os.getpid()
    try:
        with socket.socket(fileno=descriptor) as asked:
            _tend(module, asked, alive)
    finally:
        if os.getpid() == here:
            for pid in alive:
                _end(pid)  # not waited for: the number is still theirs


def _tend(module: str, asked: socket.socket, alive: set[int]) -> None:
    while True:
        message, fds, _, _ = socket.recv_fds(asked, 1, 2)
        if not message:
            return
        if message == b"f":
            pid = os.fork()
            if pid == 0:
                asked.close()
                _work(module, *fds)
            alive.add(pid)
            for fd in fds:
                os.close(fd)
            asked.sendall(pid.to_bytes(8, "little", signed=True))
        else:
            pid = int.from_bytes(asked.recv(8, socket.MSG_WAITALL), "little")
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            _end(pid)  # what it started outlives it by no more than this; the number is still its group's
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            alive.discard(pid)
            asked.sendall(code.to_bytes(8, "little", signed=True))


def _end(pid: int) -> None:
    """End a worker and its group; the worker alone where it has none yet."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)


def _work(module: str, channel: int, log: int) -> None:
    os.setsid()  # a group of its own, to be ended as one
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        with socket.socket(fileno=channel) as ours:
            serve(module, ours.makefile(encoding="utf-8"), ours.makefile("w", encoding="utf-8"))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    import torch

    warnings.simplefilter("ignore")
    private.import_compilers()
    importlib.import_module(sys.argv[1])
    torch.set_num_threads(1)  # properties that are about threads ask for more
    tend(sys.argv[1], int(sys.argv[2]))
