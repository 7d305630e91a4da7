"""Where, with what and when something was measured."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from opwright.version import __version__


def machine() -> dict[str, Any]:
    """What of this machine decides how fast it is."""
    found: dict[str, Any] = {"cpu": _cpu(), "cores": os.cpu_count() or 1, "threads": torch.get_num_threads()}
    found["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    found["os"] = f"{platform.system()} {platform.machine()}"
    return found


def name(machine: dict[str, Any]) -> str:
    """The name of a machine's results file: nothing but what describes it.

    >>> name({"cpu": "Intel(R) Xeon(R) Processor", "cores": 2, "threads": 2, "gpu": None})
    'intel-xeon-2'
    >>> name({"cpu": "AMD EPYC 9654", "cores": 16, "threads": 16, "gpu": "NVIDIA H200"})
    'nvidia-h200-amd-epyc-9654-16'
    """
    words = f"{machine.get('gpu') or ''} {machine['cpu']}"
    words = re.sub(r"\((?:R|TM|tm)\)|\b(?:CPU|Processor|with|Graphics)\b|@.*|\d+-Core", " ", words)
    return "-".join([*re.findall(r"[a-z0-9.]+", words.lower()), str(machine["threads"])])


def versions() -> dict[str, str]:
    """The software that decides."""
    found = {"opwright": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
    if torch.version.cuda:
        found["cuda"] = str(torch.version.cuda)
    return found


def load() -> float:
    """How many processes wanted a processor in the last minute, before anything was measured."""
    try:
        return round(os.getloadavg()[0], 1)
    except OSError:
        return 0.0


def busy(run: dict[str, Any], machine: dict[str, Any]) -> bool:
    """Whether others were at work while something was measured: ratios bear that, times do not.

    >>> busy({"load": 3.0}, {"cores": 2}), busy({"load": 0.4}, {"cores": 2})
    (True, False)
    """
    return bool(run.get("load", 0.0) > 0.6 * machine["cores"])


def commit(folder: Path | None = None) -> str:
    """The commit of the sources at hand, with `+` behind it when they were changed since; empty where there is none."""

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=20, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "--short=10", "HEAD")
    return head + ("+" if head and git("status", "--porcelain", "--untracked-files=no") else "")


def today() -> str:
    """The date, as results carry it."""
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor() or platform.machine()
