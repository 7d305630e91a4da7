"""What the documents say is executed: code blocks, docstrings, links, generated pages."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import opwright as ow
from opwright.kit import pages
from tests.library import OPERATORS

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = [m.name for m in pkgutil.walk_packages(ow.__path__, "opwright.") if "__main__" not in m.name]


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "document",
    [d for d in DOCUMENTS if blocks(d, "python") and d.name != "cookbook.md"],  # whose recipes test_cookbook.py proves
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_python_blocks_run_in_order(document: Path, tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text("\n\n".join(blocks(document, "python")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(script)],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def shown(document: Path) -> list[tuple[str, str]]:
    """Pairs of a Python block and the text block right behind it, which shows what it prints."""
    text = document.read_text(encoding="utf-8")
    return re.findall(r"^```python\n((?:(?!^```).)*)^```\n\n?(?:[^\n`]*\n\n)?```text\n(.*?)^```$", text, re.M | re.S)


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if shown(d)], ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_document_shows_is_what_is_printed(document: Path, tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text("\n\n".join(blocks(document, "python")), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=tmp_path)
    for _, expected in shown(document):
        assert expected.strip() in done.stdout, f"{document.name} shows\n{expected}\nbut its code prints\n{done.stdout}"


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        test.globs = {**test.globs, "__name__": "__main__"}  # as a reader's own script would run it
        runner.run(test, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
def test_operators_explain_themselves(op: ow.Op[..., object]) -> None:
    assert op.__doc__
    if op.signature.returns_input is None:
        for word in ("Args:", "Equivalent to:", ">>> "):
            assert word in op.__doc__


def test_reference_pages_are_fresh() -> None:
    folder = ROOT / "docs" / "reference"
    for op in OPERATORS:
        file = folder / f"{op.name}.md"
        assert file.read_text(encoding="utf-8") == pages.page(op), f"{file.name} is stale: make docs"
    assert {p.stem for p in folder.glob("*.md")} == {op.name for op in OPERATORS} | {"README"}


def test_tables_are_those_of_the_stored_results() -> None:
    tables = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))
    for page in tables["PAGES"]:
        assert page.read_text(encoding="utf-8") == tables["filled"](page), f"{page.name} is stale: make docs"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_make_target_named_in_a_document_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"(?:^|`)make ([\w-]+)", document.read_text(encoding="utf-8"), re.MULTILINE))
        assert named <= targets, f"{document.name}: {named - targets}"
