"""What the judge asks a function, and what it says where asking fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import opwright as ow


def copying(x: Tensor, out: Tensor) -> None:
    """Its source has a number that leads to larger sizes."""
    if out.shape != x.shape or out.dtype != x.dtype or not out.is_contiguous():
        raise ValueError("out must be like x")
    BLOCK = 256  # noqa: F841
    out.copy_(x * 2)


def test_what_the_reference_rejects_for_its_strides_it_may_reject_too() -> None:
    """Where strides are far apart the reference is asked with copies that lie close together, which it may take."""
    samples: list[Any] = [(torch.randn(33, 65), torch.zeros(33, 65)), (torch.randn(3000), torch.zeros(3000))]
    report = ow.check(copying, like=copying, samples=samples, only=["forward"])
    assert report.passed, report
    assert next(r.cases for r in report.results if r.property == "forward") > 60


def test_a_process_that_cannot_start_says_why(tmp_path: Path) -> None:
    """A package that is broken or hidden, as PyTorch's own imports meet it."""
    (tmp_path / "triton.py").touch()
    (tmp_path / "plain.py").write_text("import torch\ndef f(x): return x + 1\nsamples = [(torch.randn(3),)]\n")
    command = [sys.executable, "-m", "opwright", "check", "plain:f", "--like", "plain:f", "--samples", "plain:samples"]
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stdout
    assert "opwright.kit.check.judge.child: AttributeError: module 'triton' has no attribute" in done.stderr
    assert "File " in done.stderr
