"""A real browser, driven through its DevTools pipe: no driver to download, nothing but Debian's chromium."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page in a headless browser. Errors on its console, and whatever it asks the network for, are noted."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self.home = tempfile.TemporaryDirectory(prefix="opwright-browser-", ignore_cleanup_errors=True)
        reads, self.to = (_high(fd) for fd in os.pipe())
        self.answers, writes = (_high(fd) for fd in os.pipe())

        def place() -> None:  # the pipe is at descriptors 3 and 4 by convention
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        options += [f"--user-data-dir={self.home.name}", "--disable-dev-shm-usage", "--no-first-run"]
        self.process = subprocess.Popen(
            [CHROMIUM, *options],
            pass_fds=(3, 4),
            preexec_fn=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self.buffer = b""
        self.number = 0
        self.session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Ask the browser for something."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
        raise TimeoutError(method)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            part = os.read(self.answers, 1 << 16)
            if not part:
                raise RuntimeError("the browser ended")
            self.buffer += part
        line, _, self.buffer = self.buffer.partition(b"\0")
        event: dict[str, Any] = json.loads(line)
        said = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(said["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.errors.append(said["entry"]["text"])
        elif event.get("method") == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning"):
            self.errors.append(json.dumps(said["args"]))
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        return event

    def open(
        self, file: Path, *, width: int = 1280, height: int = 900, dark: bool = False, phone: bool = False
    ) -> None:
        """Open a file, as from disk."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip
        self.call("Page.navigate", url=file.resolve().as_uri())
        end = time.monotonic() + 30
        while self.run("document.readyState") != "complete":
            assert time.monotonic() < end
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key."""
        codes = {"Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "Escape": 27, "Enter": 13, " ": 32}
        code = codes[key]
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r" if key == "Enter" else " "} if kind == "keyDown" and key in ("Enter", " ") else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def hover(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """A picture of the page."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End the browser."""
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.answers)
        self.home.cleanup()


def _high(fd: int) -> int:
    """The same pipe under a number that is not in the way of 3 and 4."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20)
    os.close(fd)
    return moved
