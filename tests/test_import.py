"""Importing opwright is lean: quick, quiet, and touching nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MEASURE = """
import sys, time, os
import torch
before = set(sys.modules)
events = []
if sys.argv[1:] == ["listen"]:  # which slows every import down
    sys.addaudithook(lambda event, args: events.append((event, args)))
start = time.process_time()  # a busy machine is not ours to answer for
import opwright
took = time.process_time() - start
started = [a for e, a in events if e in ("subprocess.Popen", "os.system", "os.fork", "os.posix_spawn", "os.exec")]
opened = [a for e, a in events if e == "open" and isinstance(a[2], int)]
writes = [a for a in opened if a[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)]
packages = {m.partition(".")[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(took, len(started), len(writes), ",".join(sorted(packages)), "torch._dynamo" in sys.modules)
"""


def test_import_is_quick_starts_no_process_and_creates_no_file(tmp_path: Path) -> None:
    home, bytecode = tmp_path / "home", tmp_path / "bytecode"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    measure = [sys.executable, "-c", MEASURE]
    subprocess.run(measure, capture_output=True, check=True, env=environment, cwd=home)  # as pip leaves a package
    runs = []
    for more in (
        ["listen"],
        *[[]] * 15,
    ):  # a host that others share takes twice as long at times: what counts is the least
        done = subprocess.run([*measure, *more], capture_output=True, text=True, check=True, env=environment, cwd=home)
        took, *rest = done.stdout.split()
        assert rest == ["0", "0", "opwright", "False"], done.stdout
        assert not done.stderr
        runs.append(float(took))
        if not more and min(runs) < 0.1:
            break
    assert min(runs) < 0.1
    assert not list(home.iterdir())
