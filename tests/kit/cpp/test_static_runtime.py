"""Compiled models of a machine whose compiler has libstdc++ as an archive alone: they load where another one is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import opwright as ow
from opwright.kit.build import toolchain
from opwright.kit.deploy import loader
from opwright.kit.deploy.package import LIBSTDCXX_ITSELF
from opwright.kit.dispatch import native
from opwright.kit.ship import elf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.available() is not None, reason="opwright's own C++ is not built"),
    pytest.mark.skipif(not toolchain.compiler().is_gcc, reason="the flag is g++'s"),
]

LINKS_THE_ARCHIVE = """#!/bin/sh
for word in "$@"; do
    case $word in
    -c | -E | -x | -v | -M* | --version | -dump*) exec {compiler} "$@" ;;
    esac
done
exec {compiler} "$@" -static-libstdc++
"""
LOADS = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
from load_model import load_package
print(load_package(sys.argv[2], trust=True)(torch.ones(2, 3)).tolist())
"""


@pytest.fixture
def compiler(tmp_path: Path) -> Iterator[None]:
    """AOTInductor's compiler links libstdc++'s archive."""
    file = tmp_path / "g++"
    file.write_text(LINKS_THE_ARCHIVE.format(compiler=" ".join(toolchain.compiler().command)))
    file.chmod(0o755)
    with torch._inductor.config.patch({"cpp.cxx": (None, str(file))}):
        yield


class Model(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = ow.axpby(x, x, a=2.0) * 3
        return result


def exported() -> torch.export.ExportedProgram:
    return torch.export.export(Model(), (torch.ones(2, 3),))


def compiled_library(archive: Path, folder: Path) -> elf.Elf:
    with zipfile.ZipFile(archive) as opened:
        [name] = [each for each in opened.namelist() if "/aotinductor/" in each and each.endswith(".so")]
        return elf.read(Path(opened.extract(name, folder)))


@pytest.mark.usefixtures("compiler")
def test_a_compiled_model_keeps_a_libstdcxx_of_its_own_to_itself(tmp_path: Path) -> None:
    file = ow.package(exported(), tmp_path / "model.pt2", compiled=True)
    library = compiled_library(file, tmp_path)
    assert not [each for each in library.needed if each.startswith("libstdc++")]  # it has one inside
    assert LIBSTDCXX_ITSELF not in library.exported
    shutil.copy(loader.__file__, tmp_path / "load_model.py")
    settings = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", LOADS, str(tmp_path), str(file)]
    settings |= {"OPWRIGHT_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=settings, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([[9.0] * 3] * 2)


@pytest.mark.usefixtures("compiler")
def test_one_that_gives_its_libstdcxx_away_is_not_packaged(tmp_path: Path) -> None:
    file = torch._inductor.aoti_compile_and_package(exported(), package_path=str(tmp_path / "plain.pt2"))
    assert LIBSTDCXX_ITSELF in compiled_library(Path(file), tmp_path).exported
    with pytest.raises(ValueError, match=r"plain\.pt2: its compiled model holds libstdc\+\+, since the compiler"):
        ow.package(file, tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()


def test_libraries_that_the_caller_asks_for_are_linked_too(tmp_path: Path) -> None:
    with (
        torch._inductor.config.patch({"aot_inductor.custom_op_libs": ["that_nobody_has"]}),
        pytest.raises(Exception, match="-lthat_nobody_has"),
    ):
        ow.package(exported(), tmp_path / "model.pt2", compiled=True)
