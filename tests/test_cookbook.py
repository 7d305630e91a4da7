"""The recipes of docs/cookbook.md are right: each is an operator that the check proves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import opwright as ow

TEXT = (Path(__file__).parents[1] / "docs" / "cookbook.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in TEXT.split("\n## ")[1:]}


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("title", SECTIONS)
def test_a_recipe_is_right(title: str, tmp_path: Path) -> None:
    (operator,), (kernel,) = (blocks(SECTIONS[title], language) for language in ("python", "cpp"))
    name = re.findall(r"^def (\w+)\(", operator, re.MULTILINE)[0]
    folder = tmp_path / name
    folder.mkdir()
    (folder / "op.py").write_text(operator, encoding="utf-8")
    (folder / "cpu.cpp").write_text(kernel, encoding="utf-8")
    report = ow.check(getattr(ow.load(folder), name))
    assert report.passed, report
    held = {r.property for r in report.results if r.op == name and r.cases}
    assert {"forward", "memory", "rejects"} <= held, report


@pytest.mark.parametrize("title", SECTIONS)
def test_a_recipe_stands_as_it_is_pasted(title: str, tmp_path: Path) -> None:
    (operator,) = blocks(SECTIONS[title], "python")
    (name,) = {name for name in re.findall(r"^def (\w+)\(", operator, re.MULTILINE) if name != "_"}
    # Under a name of its own: another file of this process has the operator already.
    (tmp_path / "op.py").write_text(re.sub(rf"\b{name}\b", f"pasted_{name}", operator), encoding="utf-8")
    assert isinstance(getattr(ow.load(tmp_path / "op.py"), f"pasted_{name}"), ow.Op)


def test_every_recipe_is_in_the_table_and_linked() -> None:
    def anchor(title: str) -> str:
        return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")

    links = re.findall(r"\]\(#([^)]+)\)", TEXT)
    assert sorted(links) == sorted(anchor(title) for title in SECTIONS)
