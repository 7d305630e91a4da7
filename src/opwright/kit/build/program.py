"""Running a program for what it says, safe from forks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from opwright.kit import locks

_starting = locks.settled()
"""Held while a program starts. A child that is forked just then would inherit the ends of the pipes that the program
writes to, and whoever reads would wait until that child ends as well."""


def run(
    command: list[str],
    *,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as subprocess.run does, with what it wrote."""
    with _starting:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=env, cwd=cwd
        )
    with process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)
