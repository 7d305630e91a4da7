"""The header's examples, and those of the documents, compile as they stand."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from opwright.kit.build import toolchain
from opwright.kit.build.plan import Plan

ROOT = Path(__file__).parents[3]


def examples() -> dict[str, str]:
    found: dict[str, str] = {}
    for document in sorted((ROOT / "docs").glob("*.md")):
        blocks = re.findall(r"^```cpp\n(.*?)^```$", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        found |= {f"{document.name}:{i}": block for i, block in enumerate(blocks)}
    header = (toolchain.INCLUDE / "opwright" / "kernel.h").read_text(encoding="utf-8")
    lines = re.findall(r"^//     .*|^//$", header, re.MULTILINE)
    found["kernel.h"] = "".join(line.removeprefix("//").removeprefix("     ") + "\n" for line in lines)
    return found


@pytest.mark.parametrize("name", examples())
def test_examples_compile(name: str, tmp_path: Path) -> None:
    source = tmp_path / "example.cpp"
    source.write_text(examples()[name], encoding="utf-8")
    assert "OPWRIGHT_KERNEL" in source.read_text()
    plan = Plan("example", (source,), defines=("OPWRIGHT_NAMESPACE=example", "OPWRIGHT_KEY={key}"))
    includes = [f"-I{p}" for p in plan.includes] + [f"-isystem{p}" for p in toolchain.torch_includes()]
    command = [*toolchain.compiler().command, *plan.flags, *plan.filled_defines(), *includes, "-Wall", "-Werror"]
    done = subprocess.run([*command, "-fsyntax-only", str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
