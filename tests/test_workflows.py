"""The workflows run what anybody can run: make targets and scripts of the repository."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from opwright.version import NEWEST_TORCH, OLDEST_TORCH

ROOT = Path(__file__).parent.parent
WORKFLOWS = {file.name: file.read_text(encoding="utf-8") for file in (ROOT / ".github" / "workflows").glob("*.yml")}
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def faults(text: str) -> list[str]:
    """What a workflow must not do. Read as text: a parser for YAML is no dependency of ours."""
    found = []
    for line in re.findall(r"^\s*(?:- )?run:(.*)$", text, re.MULTILINE):
        first, *rest = line.split() or [""]
        script = ROOT / first
        if first == "make" and rest:
            if rest[0] not in TARGETS:
                found.append(f"make {rest[0]}: there is no such target")
        elif not (first and script.is_file() and os.access(script, os.X_OK)):
            found.append(f"{line.strip()!r} is no make target and no script of the repository")
        if "github." in line:
            found.append(f"{line.strip()!r} takes a text from outside into a shell: hand it over as a variable (env)")
    for action in re.findall(r"uses: *(\S+)", text):
        if not re.fullmatch(r"actions/[\w-]+@v\d+", action):
            found.append(f"{action} must be one of GitHub's own, by its major version")
    if re.findall(r"^permissions:\n((?:  .*\n)+)", text, re.MULTILINE) != ["  contents: read\n"]:
        found.append("its permissions must be `contents: read` alone")
    if text.count("permissions:") != 1:
        found.append("permissions must be given once, for the whole workflow")
    if "secrets." in text or "pull_request_target" in text:
        found.append("it must need no secrets")
    if text.count("timeout-minutes:") != text.count("runs-on:"):
        found.append("each job must have a timeout")
    return found


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_runs_what_the_repository_has(name: str) -> None:
    assert re.search(r"^\s*(?:- )?run: \S", WORKFLOWS[name], re.MULTILINE), "it runs nothing"
    assert faults(WORKFLOWS[name]) == []


def test_there_is_a_workflow_for_tests_wheels_and_versions() -> None:
    assert sorted(WORKFLOWS) == ["test.yml", "versions.yml", "wheels.yml"]
    assert "run: .ci/run\n" in WORKFLOWS["test.yml"]
    assert "run: make wheels\n" in WORKFLOWS["wheels.yml"]
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name in WORKFLOWS:
        assert f"`{name}`" in told, f"CONTRIBUTING.md does not say what {name} runs"


def test_the_scheduled_versions_are_the_oldest_and_the_newest() -> None:
    (matrix,) = re.findall(r"torch: \[(.*)\]", WORKFLOWS["versions.yml"])
    assert matrix == ", ".join(f'"{major}.{minor}.0"' for major, minor in (OLDEST_TORCH, NEWEST_TORCH))


@pytest.mark.parametrize(
    "before, after, why",
    [
        ("run: .ci/run", "run: make everything", "make everything: there is no such target"),
        ("run: .ci/run", "run: .ci/walk", "'.ci/walk' is no make target and no script"),
        ("run: .ci/run", "run: |\n          pip install torch", "is no make target and no script"),
        ("run: .ci/run", "run: README.md", "no script"),  # which cannot be run
        ("run: .ci/run", "run: make test X=${{ github.ref_name }}", "takes a text from outside"),
        ("actions/checkout@v6", "actions/checkout@main", "by its major version"),
        ("actions/checkout@v6", "somebody/checkout@v6", "one of GitHub's own"),
        ("contents: read", "contents: write", "contents: read"),
        ("  contents: read\n", "  contents: read\n  packages: write\n", "contents: read"),
        ("cache: pip", "cache: ${{ secrets.TOKEN }}", "no secrets"),
        ("    timeout-minutes: 60\n", "", "a timeout"),
    ],
)
def test_a_workflow_that_does_otherwise_is_found(before: str, after: str, why: str) -> None:
    assert before in WORKFLOWS["test.yml"]
    (fault,) = faults(WORKFLOWS["test.yml"].replace(before, after))
    assert why in fault
