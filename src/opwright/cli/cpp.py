"""`opwright cmake`: operators in C++ programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from opwright.cli.choosing import Names, broken, chosen
from opwright.kit.cpp import project
from opwright.kit.deploy import loader as standalone


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
