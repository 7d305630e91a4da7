"""docs/cpp.md: every command that it shows, in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.cpp import workplace

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cpp.md"


@workplace.needs_cmake
@pytest.mark.slow
def test_every_command_runs(tmp_path: Path) -> None:
    commands = "\n".join(re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
    (tmp_path / "bin").mkdir()
    for name, module in (("python", ""), ("opwright", "-m opwright")):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-x", "-c", commands], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    said = done.stdout.splitlines()
    assert "tensor(24.)" in said
    assert said.count("torch.Size([5, 3])") == 2
    assert said[-1].startswith("repository/build/torch")
    value, slope = next(line.split() for line in said if re.fullmatch(r"[\d.]+ [\d.]+", line))
    assert float(value) == pytest.approx(23.9407, abs=1e-3)
    assert float(slope) > 0
