"""A process that has imported everything and from which workers are forked: one is had in milliseconds.

It runs no tensor operation itself, so that it has no threads which a fork would lose.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import warnings

from opwright.kit import locks, private

INSIDE = "OPWRIGHT_INSIDE_CHECK"
"""Set in the check's own processes, which must not start checks of their own."""


class Nursery:
    """The parent's side: starts the process when it is first needed."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._lock = locks.renewed()
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self, requests: int, answers: int, log: int) -> int:
        """Fork a worker that reads and writes these descriptors; its process's id."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            socket.send_fds(self._socket, [b"f"], [requests, answers, log])
            return self._answer()

    def status(self, pid: int) -> int:
        """Wait for a worker's end and say how it ended, as subprocess does: minus the signal, or the exit status."""
        with self._lock:
            self._socket.sendall(b"w" + pid.to_bytes(8, "little"))
            return self._answer()

    def _answer(self) -> int:
        said = b""
        while len(said) < 8:
            piece = self._socket.recv(8 - len(said))
            if not piece:
                self._log.seek(0)
                last = self._log.read().decode(errors="replace").strip().splitlines()
                raise RuntimeError(f"the check's own process ended: {last[-1] if last else 'it said nothing'}")
            said += piece
        return int.from_bytes(said, "little", signed=True)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._socket, self._log = ours, tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the process
        paths = os.pathsep.join(p for p in sys.path if p)
        environment = {
            **os.environ,
            "PYTHONPATH": paths,
            "OMP_WAIT_POLICY": "PASSIVE",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # a look at the GPUs before a fork must not open them
            INSIDE: "1",
            **self._environment,
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "opwright.kit.check.nursery", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                env=environment,
            )  # fmt: skip

    def stop(self) -> None:
        """End the process; its workers end when their pipes close."""
        if self._process is not None:
            self._socket.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._log.close()


def tend(descriptor: int) -> None:
    """The process's side: fork on request, until the parent is gone."""
    with socket.socket(fileno=descriptor) as asked:
        while True:
            message, fds, _, _ = socket.recv_fds(asked, 1, 3)
            if not message:
                return
            if message == b"f":
                pid = os.fork()
                if pid == 0:
                    asked.close()
                    _work(*fds)
                for fd in fds:
                    os.close(fd)
                asked.sendall(pid.to_bytes(8, "little", signed=True))
            else:
                pid = int.from_bytes(asked.recv(8, socket.MSG_WAITALL), "little")
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                asked.sendall(code.to_bytes(8, "little", signed=True))


def _work(requests: int, answers: int, log: int) -> None:
    from opwright.kit.check.worker import serve

    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        serve(requests, answers)
    finally:
        os._exit(0)


if __name__ == "__main__":
    import torch

    warnings.simplefilter("ignore")
    private.import_compilers()
    torch.set_num_threads(1)  # properties that are about threads ask for more
    tend(int(sys.argv[1]))
