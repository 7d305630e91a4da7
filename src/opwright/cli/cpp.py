"""`opwright cmake`: operators in C++ programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from opwright.cli.choosing import Names, broken, chosen
from opwright.kit.cpp import project
from opwright.kit.deploy import hub as layout
from opwright.kit.deploy import loader as standalone


def hub(
    names: Names = None,
    to: Annotated[Path, typer.Option(help="The repository's folder.")] = Path("hub"),
    name: Annotated[str, typer.Option(help="What the repository is called, such as my-ops.")] = "",
    version: Annotated[int, typer.Option(help="The version that its users ask for.")] = 1,
    license: Annotated[str, typer.Option(help="The license, as SPDX spells it.")] = "Apache-2.0",
    cuda: Annotated[bool, typer.Option(help="With the kernels for GPUs, where nvcc is at hand.")] = False,
) -> None:
    """Write operators in the layout that the `kernels` package fetches from a hub, for each torch and device."""
    if not names or not name:
        raise ValueError("name operators, and the repository: opwright hub FOLDER --name my-ops")
    operators = chosen(names)
    if broken:
        raise RuntimeError(f"{name}: an operator cannot be loaded, and would be missing")
    devices = ["cpu", *(["cuda"] if cuda else [])]
    for variant in layout.write(operators, to, name=name, version=version, license=license, devices=devices):
        print(variant)


def loader() -> None:
    """Print the file that loads what `ow.package` wrote, for programs that have PyTorch and no opwright."""
    print(Path(standalone.__file__).read_text(encoding="utf-8"), end="")


def cmake(
    names: Names = None,
    target: Annotated[str | None, typer.Option(help="What opwright_add_operators calls its library.")] = None,
    to: Annotated[Path | None, typer.Option(help="Where the target's sources and its list of files go.")] = None,
    cuda: Annotated[bool, typer.Option(help="With the kernels for GPUs.")] = False,
) -> None:
    """Print the folder for CMake's find_package(opwright). With --target and --to, what CMake itself asks for: write
    the generated sources of a library of operators."""
    if target is None and to is None and not names:
        print(project.CMAKE)
        return
    if target is None or to is None or not names:
        raise ValueError("for a library: opwright cmake OP … --target NAME --to FOLDER; else no argument at all")
    operators = chosen(names)
    if broken:
        raise RuntimeError(f"{target}: an operator cannot be loaded, and would be missing")
    try:
        left = project.generate(target, operators, to.resolve(), with_cuda=cuda)
    except project.NoLibrary as e:
        raise RuntimeError(str(e)) from None
    for line in left:
        print(f"opwright: {target}: left out {line}", file=sys.stderr)
