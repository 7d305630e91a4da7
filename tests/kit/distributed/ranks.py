"""Scripts for several processes, started as users start theirs: by torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).parent


def run(script: str, processes: int, *args: str, timeout: float = 300, **environment: str) -> dict[str, Any]:
    """What a script's first process prints last, a line of JSON."""
    # Theirs too: the package may be found by it, and another one without.
    path = os.pathsep.join(filter(None, (str(HERE.parents[2]), os.environ.get("PYTHONPATH"))))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*torchrun, str(HERE / script), *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=HERE.parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment},
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def leave() -> NoReturn:
    """End a process of a group. The collectives that graphs hold keep the group, and its threads, beyond its end. These
    free tensors whenever they come to it: while Python shuts down, PyTorch aborts at that."""
    from torch import distributed

    distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
