"""What the project says of its own shape."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "opwright"
SOURCES = sorted(p for p in PACKAGE.rglob("*.py") if "template" not in p.parts)

# Who may import whom, below opwright; the package itself (`import opwright as ow`) stands for kit.op there.
ARROWS = {
    "kit": {"kit"},
    "ops": {"opwright"},
    "nn": {"ops", "kit", "nn"},
    "cli": {"kit", "cli", "opwright", "tensors"},
    "tensors": {"tensors"},
}


@pytest.mark.parametrize("file", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(file: Path) -> None:
    part = file.relative_to(PACKAGE).parts[0]
    if part not in ARROWS:
        return
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.partition(".")[0] == "opwright":
                below = name.partition(".")[2].partition(".")[0] or "opwright"
                assert below in ARROWS[part] | {"version"}, f"{file.name}: {name}"


def test_the_toolkit_knows_no_operator_by_name() -> None:
    names = [folder.parent.name for folder in (PACKAGE / "ops").glob("*/op.py")]
    assert names
    for file in (f for f in SOURCES if "kit" in f.parts):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        words |= {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not words & set(names), file


def test_an_operator_is_named_as_its_folder() -> None:
    for file in (PACKAGE / "ops").glob("*/op.py"):
        assert f"\ndef {file.parent.name}(" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("file", [*SOURCES, *(ROOT / "tests").rglob("*.py")], ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_one_thing_each(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400
    assert not re.search(r"utils?|helpers?|common|misc|manager", file.stem)


def test_every_public_name_has_a_docstring() -> None:
    import opwright as ow

    for name in set(ow.__all__) - {"__version__", "Number", "Like"}:
        assert getattr(ow, name).__doc__, name
    for attribute in vars(ow.Op):
        if not attribute.startswith("_"):
            assert getattr(ow.Op, attribute).__doc__, attribute
