"""What the workers of these tests do."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from typing import Any

from opwright.kit.workers.child import Say


def answer(request: dict[str, Any], say: Say) -> dict[str, Any]:
    kind = request["do"]
    print("printed: what nobody reads as an answer", flush=True)
    if kind == "count":
        for n in range(request["to"]):
            say(n=n)
    elif kind == "raise":
        raise ValueError("on purpose")
    elif kind == "crash":
        ctypes.string_at(0)
    elif kind == "exit":
        print("the last line", file=sys.stderr, flush=True)
        os._exit(3)
    elif kind == "hang":
        started = subprocess.Popen(["sleep", "600"]).pid
        say(pids=[os.getpid(), started])
        time.sleep(600)
    return {"pid": os.getpid()}
