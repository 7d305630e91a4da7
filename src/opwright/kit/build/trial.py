"""What a built extension registers with PyTorch, asked of the library itself: another process loads it first.

PyTorch ends a process in which a schema does not parse, or two libraries register the same operator. So what a library
does when it is loaded is found out once, where it is built, and written down beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from opwright.kit import private
from opwright.kit.build import program
from opwright.kit.build.trouble import BuildError

_REGISTERS = (b"_ZN5torch7LibraryC", b"aoti_torch_library_init")
"""What a library calls that registers something, however its source spells it."""
# A class's name, by which PyTorch tells it from others. One of an unnamed namespace begins with a star, and is its own.
_CLASS = re.compile(rb"\0N3c1014tagged_capsuleI([^\0]+)EE(?=\0)")


def registrations(name: str, library: Path) -> dict[str, Any]:
    """The operators, namespaces and classes that a library registers, and the C++ types of the classes. Raise
    BuildError where loading it ends the process."""
    content = library.read_bytes()
    if not any(word in content for word in _REGISTERS):
        return {}
    done = _tried(library, ())
    loaded = sorted(map(str, torch.ops.loaded_libraries))
    if _ended(done) and loaded:  # it may need what they register
        done = _tried(library, loaded)
    if _ended(done):
        said = re.search(r"what\(\):\s*(.+?)(?:\nException raised from|\Z)", done.stderr, re.DOTALL)
        why = said[1].strip() if said else f"it ends by signal {-done.returncode}"
        raise BuildError(f"{name}: it is built, and what it registers ends the process that loads it:\n{why}")
    found: dict[str, Any] = {}
    with contextlib.suppress(ValueError, IndexError):  # where it could not be loaded, whoever loads it next is told why
        found = json.loads(done.stdout.splitlines()[-1])
    return found | {"types": sorted({match.decode() for match in _CLASS.findall(content)})}


def _tried(library: Path, before: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    told = json.dumps({"before": before, "library": str(library)})
    return program.run([sys.executable, "-m", __name__, told], env=environment, cwd=library.parent)


def _ended(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode < 0 or "terminate called" in done.stderr


def _main(told: str) -> None:
    given = json.loads(told)
    for each in given["before"]:
        with contextlib.suppress(OSError):
            torch.ops.load_library(each)
    operators, classes = set(private.operator_names()), set(private.classes())
    torch.ops.load_library(given["library"])
    new = sorted({op.partition(".")[0] for op in set(private.operator_names()) - operators})
    made = sorted(set(private.classes()) - classes)
    spaces = {op.partition("::")[0] for op in new} | {kind.partition(".")[0] for kind in made}
    owned = sorted(space for space in spaces if private.is_taken(space))
    print(json.dumps({"operators": new, "classes": made, "namespaces": owned}))


if __name__ == "__main__":
    _main(sys.argv[1])
