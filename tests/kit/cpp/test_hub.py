"""Operators in the layout of the `kernels` package: a module that needs PyTorch alone, and metadata that fits."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import opwright as ow
from opwright.kit.deploy import hub
from opwright.kit.dispatch import native

pytestmark = pytest.mark.skipif(native.available() is not None, reason="opwright's own C++ is not built")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hub")
    hub.write([ow.linear, ow.sigmoid], place, name="my-ops", version=1, license="Apache-2.0", devices=["cpu"])
    return place


def variant_of(repository: Path) -> Path:
    major, minor, *_ = torch.__version__.split(".")
    return repository / "build" / f"torch{major}{minor}-cxx11-cpu-{os.uname().machine}-{sys.platform}"


def test_metadata_has_the_digest_of_every_file(repository: Path) -> None:
    variant = variant_of(repository)
    about = json.loads((variant / "metadata.json").read_text())
    files = {f.name: base64.b64encode(hashlib.sha256(f.read_bytes()).digest()).decode() for f in variant.iterdir()}
    del files["metadata.json"]
    assert about.pop("digest") == {"algorithm": "sha256", "files": files}
    assert about.pop("id").startswith("_my_ops_cpu_")
    wanted = {"name": "my-ops", "version": 1, "license": "Apache-2.0", "python-depends": [], "backend": {"type": "cpu"}}
    assert about == wanted


USE = """
import importlib.util, sys
import torch
spec = importlib.util.spec_from_file_location("my_ops", sys.argv[1])
my_ops = importlib.util.module_from_spec(spec)
spec.loader.exec_module(my_ops)
assert not [name for name in sys.modules if name.startswith("opwright")]
x = torch.ones(2, 3, requires_grad=True)
my_ops.linear(x, torch.ones(4, 3), bias=None).sum().backward()
print(x.grad.sum().item(), my_ops.sigmoid(torch.zeros(1)).item(), my_ops.__all__)
# By position and by name, past no domain and with a gradient: the first overload that fits is the operator.
traced = torch.jit.trace(lambda t: torch.ops.opwright.sigmoid(t), torch.zeros(2))
for call in (my_ops.sigmoid, torch.ops.opwright.sigmoid, lambda t: torch.ops.opwright.sigmoid(x=t), traced):
    z = torch.zeros(2, requires_grad=True)
    call(z).sum().backward()
    assert z.grad.tolist() == [0.25, 0.25], z.grad
    try:
        call(torch.zeros(2, dtype=torch.int64))
    except NotImplementedError as e:
        assert "x is Long[2] on cpu; its kernel for CPU takes " in str(e), e
    else:
        raise AssertionError("a call outside of the domain was served")
"""


def test_the_module_needs_pytorch_alone(repository: Path, tmp_path: Path) -> None:
    settings = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", USE, str(variant_of(repository) / "__init__.py")]
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=100)
    assert done.stdout == "24.0 0.5 ['linear', 'sigmoid']\n", done.stderr


@pytest.mark.skipif(importlib.util.find_spec("kernels") is None, reason="needs the package kernels")
def test_the_kernels_package_loads_it(repository: Path, tmp_path: Path) -> None:
    program = (
        "import sys, torch\nfrom pathlib import Path\nfrom kernels import get_local_kernel\n"
        "k = get_local_kernel(Path(sys.argv[1]), backend='cpu')\n"
        "print(k.linear(torch.ones(2, 3), torch.ones(4, 3)).sum().item())"
    )
    command = [sys.executable, "-c", program, str(repository / "build")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stdout.endswith("24.0\n"), done.stderr


def test_names_that_no_repository_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="small letters, digits and -"):
        hub.write([ow.linear], tmp_path, name="My_Ops", version=1, license="MIT", devices=["cpu"])
    with pytest.raises(ValueError, match="no operator has a kernel for cpu"):
        hub.write([ow.axpby_], tmp_path, name="my-ops", version=1, license="MIT", devices=["cpu"])
